from lilliput.tables import html_table


def test_every_text_of_a_table_is_escaped():
    evil = '<script>alert("x")</script>\x1b[31m'
    html = html_table([(evil, 1)], header=(evil, "n"), title=evil, notes=[evil])
    assert "<script>" not in html and "\x1b" not in html
    assert html.count("&lt;script&gt;") == 4


def test_numbers_are_on_the_right_and_have_thousands():
    html = html_table([("a", 12345, True)], header=("name", "count", "flag"))
    assert '<td style="text-align:right">12,345</td>' in html
    assert '<th style="text-align:right">count</th>' in html
    assert '<td style="text-align:left">True</td>' in html


def test_a_long_table_is_cut_and_says_so():
    html = html_table([(i,) for i in range(100)], most_rows=10)
    assert html.count("<tr>") == 11 and "… and 90 more" in html


def test_a_table_without_rows_is_one():
    assert html_table([], header=("a",)).count("<th") == 2  # thead and one cell
