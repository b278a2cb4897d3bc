"use strict";
(async () => {
  const one = (selector, from = document) => from.querySelector(selector);
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const unpacked = (text) => { // what was too long to stand here as it is
    const bytes = Uint8Array.from(atob(text), (x) => x.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
  };
  const held = one("#data");
  const source = held.type === "text/plain" ? await unpacked(held.textContent) : held.textContent;
  const data = JSON.parse(source);
  all(".tools, .controls, .choice, .picker, .copy, .readout").forEach((x) => { x.hidden = false; });

  // Light and dark: what the system says, until the reader says otherwise.
  const root = document.documentElement, button = one("#theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const remembered = (value) => {
    try {
      if (value) localStorage.setItem("lilliput-theme", value);
      return localStorage.getItem("lilliput-theme");
    } catch { return null; } // some browsers keep nothing for files
  };
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const showTheme = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-pressed", String(isDark()));
    button.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
  };
  const theme = remembered();
  if (theme === "dark" || theme === "light") root.dataset.theme = theme;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remembered(root.dataset.theme);
    showTheme();
  });
  system.addEventListener("change", showTheme);
  showTheme();

  // The section that is being read, in the list of sections.
  const watcher = new IntersectionObserver((entries) => entries.forEach((entry) => {
    const link = one(`nav a[href="#${entry.target.id}"]`);
    if (entry.isIntersecting) link?.setAttribute("aria-current", "true");
    else link?.removeAttribute("aria-current");
  }), { rootMargin: "-25% 0px -70% 0px" });
  all("section").forEach((section) => watcher.observe(section));

  // The data, as the file beside this page.
  one("#download").addEventListener("click", (event) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([source], { type: "application/json" }));
    link.download = event.currentTarget.dataset.name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
  all(".copy").forEach((copy) => copy.addEventListener("click", async () => {
    const text = one("code", copy.parentElement);
    try {
      await navigator.clipboard.writeText(text.textContent);
      copy.textContent = "Copied";
    } catch { // not allowed here: select it, so that the reader can
      getSelection().selectAllChildren(text);
      copy.textContent = "Selected";
    }
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  }));

  // The table: a click sorts, the next one turns round, the third goes back to the model's order.
  const table = one("#table");
  if (table) {
    const body = table.tBodies[0], rows = [...body.rows];
    const value = (row, column) => {
      const cell = row.cells[column], held = cell.dataset.v ?? cell.textContent;
      if (held === "-" || held === "\u2013" || held === "") return null;
      return table.tHead.rows[0].cells[column].classList.contains("number") ? Number(held) : held;
    };
    const compare = (a, b) => (typeof a === "number" ? a - b
      : a.localeCompare(b, undefined, { numeric: true }));
    const sortBy = (header, order) => {
      const column = header.cellIndex, sign = order === "descending" ? -1 : 1;
      const sorted = [...rows];
      if (order !== "none") {
        sorted.sort((x, y) => {
          const a = value(x, column), b = value(y, column);
          if (a === null || b === null) return (a === null) - (b === null); // unknown comes last
          return sign * compare(a, b);
        });
      }
      body.append(...sorted);
      all("[aria-sort]", table).forEach((x) => x.setAttribute("aria-sort", x === header ? order : "none"));
      one("#sorted").textContent = order === "none" ? "In the model's order"
        : `Sorted by ${header.textContent.trim()}, ${order}`;
    };
    all("th button", table).forEach((x) => x.addEventListener("click", () => {
      const header = x.closest("th"), now = header.getAttribute("aria-sort");
      const first = x.dataset.first, second = first === "ascending" ? "descending" : "ascending";
      sortBy(header, now === "none" ? first : now === first ? second : "none");
    }));
    const find = one("#find"), minor = one("#minor"), count = one("#count");
    const filter = () => {
      const wanted = find.value.trim().toLowerCase();
      let shown = 0;
      for (const row of rows) {
        const isMinor = minor && !minor.checked && row.classList.contains("minor");
        row.hidden = isMinor || !(row.cells[0].textContent + " " + row.cells[1].textContent).toLowerCase().includes(wanted);
        shown += !row.hidden;
      }
      count.textContent = shown === rows.length ? `${shown} layers` : `${shown} of ${rows.length} layers`;
    };
    find.addEventListener("input", filter);
    minor?.addEventListener("change", filter);
    filter();
  }

  // All models tried: one cost at a time.
  const choices = all(".choice button");
  const choose = (cost) => {
    choices.forEach((x) => x.setAttribute("aria-pressed", String(x.dataset.cost === cost)));
    all("div[data-cost]").forEach((x) => { x.hidden = x.dataset.cost !== cost; });
  };
  choices.forEach((x) => x.addEventListener("click", () => choose(x.dataset.cost)));
  if (choices.length) choose(choices[0].dataset.cost);

  // The heat map: the column under the pointer, in words.
  const make = (name, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    Object.entries(attributes).forEach(([key, held]) => element.setAttribute(key, held));
    return element;
  };
  const strips = all("#heat svg");
  if (strips.length) {
    const layers = data.layers.filter((x) => (x.shape_before ?? x.shape ?? []).length > 1 || x.macs || x.macs_before);
    const readout = one("#heat .readout"), wide = 960 / layers.length;
    const marks = strips.map((svg) => {
      const mark = make("rect", { class: "pointer", width: Math.max(wide, 4), height: 28, visibility: "hidden" });
      svg.append(mark);
      return mark;
    });
    const describe = (layer) => {
      const whole = layer.parameters_before ?? layer.parameters, parts = [layer.name];
      if (whole) parts.push(`${(100 * Math.min(layer.nonzeros / whole, 1)).toFixed(1)} % kept`);
      if (layer.bits) parts.push(`${layer.bits} bits`);
      Object.entries(layer.sqnr ?? {}).forEach(([key, ratio]) => parts.push(`${key} ${ratio.toFixed(1)} dB`));
      return parts.join(" \u00b7 ");
    };
    strips.forEach((svg) => {
      svg.addEventListener("pointermove", (event) => {
        const box = svg.getBoundingClientRect();
        const at = Math.floor(((event.clientX - box.left) / box.width) * layers.length);
        const i = Math.min(Math.max(at, 0), layers.length - 1);
        readout.textContent = describe(layers[i]);
        marks.forEach((x) => { x.setAttribute("x", i * wide); x.setAttribute("visibility", "visible"); });
      });
      svg.addEventListener("pointerleave", () => marks.forEach((x) => x.setAttribute("visibility", "hidden")));
    });
  }

  // Histograms: any tensor, drawn from the data as the others were.
  const pick = one("#pick");
  if (pick) {
    data.histograms.forEach((x, i) => pick.append(new Option(`${x.layer} \u00b7 ${x.target}`, i)));
    const outline = (bins, top) => {
      const step = 260 / bins.length;
      const tops = bins.map((x, i) => `V${(84 - Math.min(x / top, 1) * 80).toFixed(1)}H${((i + 1) * step).toFixed(1)}`);
      return `M0 84${tops.join("")}V84z`;
    };
    const show = () => {
      const pair = data.histograms[pick.value];
      const sides = [["before", pair.before], ["after", pair.after]].filter((x) => x[1]);
      const heights = sides.map((x) => [...x[1]].sort((a, b) => b - a));
      const tall = Math.max(...heights.map((x) => x[0])), second = Math.max(...heights.map((x) => x[1] ?? x[0]));
      const top = Math.max(Math.min(tall, 2 * second), 1);
      const svg = make("svg", { class: "chart hist", viewBox: "0 0 260 104", role: "img", "aria-label": `Histogram of ${pair.layer}, ${pair.target}` });
      sides.forEach(([kind, bins]) => svg.append(make("path", { class: kind, d: outline(bins, top) })));
      svg.append(make("path", { class: "axis", d: "M0 84H260" }));
      [[0, pair.low, "start"], [260, pair.high, "end"]].forEach(([x, held, anchor]) => {
        const label = make("text", { x, y: 99, "text-anchor": anchor });
        label.textContent = String(Number(held.toPrecision(3))).replace("-", "\u2212");
        svg.append(label);
      });
      const caption = document.createElement("figcaption"), name = document.createElement("span");
      const detail = document.createElement("span");
      name.className = "layer"; name.textContent = pair.layer;
      detail.className = "detail";
      detail.textContent = pair.target + (pair.zeros ? ` \u00b7 ${(100 * pair.zeros).toFixed(1)} % zeros` : "");
      caption.append(name, detail);
      one("#picked").replaceChildren(svg, caption);
    };
    pick.addEventListener("change", show);
    show();
  }
})();
