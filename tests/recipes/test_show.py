"""What a person sees while a recipe runs."""

import io

from lilliput.recipes.show import Event, _Bar, _Lines, make_progress


def test_lines_are_plain_and_say_what_was_measured():
    stream = io.StringIO()
    lines = _Lines(stream)
    lines(Event(3, 12, "finetune: epoch 1 of 2"))
    lines(Event(3, 12, "finetune: epoch 1 of 2", 1.25))
    lines(Event(4, 12, "finetune: measure", 0.5, 0.875))
    assert stream.getvalue().splitlines() == [
        "[ 3/12] finetune: epoch 1 of 2 (1.2 s)",
        "[ 4/12] finetune: measure (0.5 s, metric 0.8750)",
    ]


def test_nothing_is_shown_if_not_asked_for(capsys):
    make_progress(False)(Event(1, 2, "text", 1.0))
    assert capsys.readouterr() == ("", "")


def test_the_bar_counts_what_is_done(capsys):
    bar = _Bar()
    bar(Event(4, 12, "finetune: measure"))
    bar(Event(4, 12, "finetune: measure", 0.5, 0.875))
    assert bar.bar.tasks[0].completed == 4
    bar.close()
    assert "metric 0.8750" in capsys.readouterr().err
