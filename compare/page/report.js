"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const place = Object.fromEntries(data.columns.map((name, index) => [name, index]));
  const table = document.getElementById("rows");
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const lines = [...body.rows];
  const form = document.getElementById("filters");
  const search = document.getElementById("search");
  const selects = [...form.querySelectorAll("select")];

  const SVG = document.querySelector("svg")?.namespaceURI;
  function make(tag, text, attributes = {}) {
    const svg = tag === "svg" || tag === "rect" || tag === "title";
    const element = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  }

  // Filters. A row's details live and go with it.
  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const line of lines) {
      const text = line.dataset.search.toLowerCase();
      const fits = words.every((word) => text.includes(word))
        && selects.every((select) => !select.value || line.dataset[select.dataset.filter] === select.value);
      line.hidden = !fits;
      if (line.detail) line.detail.hidden = !fits;
      shown += fits;
    }
    document.getElementById("count").textContent = `${shown} of ${lines.length} rows`;
  }

  // Sorting: rows without a value come last, whichever way.
  function key(line, column, numeric) {
    const cell = line.cells[column];
    if (!numeric) return cell.textContent.trim();
    return cell.dataset.v === undefined ? null : Number(cell.dataset.v);
  }
  function sort(column) {
    const head = heads[column];
    const numeric = head.classList.contains("number");
    const before = head.getAttribute("aria-sort");
    const way = before ? (before === "descending" ? "ascending" : "descending") : numeric ? "descending" : "ascending";
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", way);
    const sign = way === "ascending" ? 1 : -1;
    lines.sort((one, other) => {
      const a = key(one, column, numeric), b = key(other, column, numeric);
      if (a === null || b === null) return (a === null) - (b === null);
      return sign * (numeric ? a - b : a.localeCompare(b, "en", { numeric: true }));
    });
    const ordered = [];
    for (const line of lines) ordered.push(line, ...(line.detail ? [line.detail] : []));
    body.append(...ordered);
  }
  heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => sort(column)));

  // Details: everything the row holds, by group, and what the kernel's machine code says.
  function shownAs(value) {
    if (typeof value === "boolean") return value ? "yes" : "no";
    if (typeof value !== "number" || Number.isInteger(value)) return String(value);
    return Math.abs(value) < 1e-3 ? value.toExponential(3) : String(Number(value.toPrecision(6)));
  }
  function group(title, pairs) {
    const part = make("div");
    part.append(make("h4", title));
    const list = make("dl");
    for (const [name, value, meaning] of pairs) {
      const pair = make("div");
      pair.append(make("dt", name, meaning ? { title: meaning } : {}), make("dd", value));
      list.append(pair);
    }
    part.append(list);
    return part;
  }
  const SHADES = ["handwritten", "torch", "cutlass", "cute_dsl", "cublas"];
  function loopMix(found) {
    const mix = Object.entries(found.per_k_step || {});
    const total = mix.reduce((sum, [, count]) => sum + count, 0);
    const part = group("Main loop, a k step", [
      ...mix.map(([name, count]) => [name, `${shownAs(count)} (${(100 * count / total).toFixed(1)} %)`]),
      ...Object.entries(found.facts || {}).map(([name, value]) => [name, shownAs(value)]),
    ]);
    if (total > 0) {
      const bar = make("svg", undefined, { class: "mix", viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" });
      let x = 0;
      mix.forEach(([name, count], index) => {
        const width = 100 * count / total;
        const rect = make("rect", undefined, { x, y: 0, width: Math.max(0, width - 0.3), height: 6, class: `bar ${SHADES[index % SHADES.length]}` });
        rect.append(make("title", name));
        bar.append(rect);
        x += width;
      });
      part.firstElementChild.after(bar);
    }
    return part;
  }
  function details(line) {
    const row = data.rows[Number(line.dataset.row)];
    const line2 = make("tr", undefined, { class: "detail" });
    const cell = make("td", undefined, { colspan: heads.length });
    const groups = make("div", undefined, { class: "groups" });
    for (const [title, names] of data.details) {
      const pairs = names.filter((name) => row[place[name]] !== null && row[place[name]] !== "")
        .map((name) => [name, shownAs(row[place[name]]), data.meanings[name]]);
      if (pairs.length) groups.append(group(title, pairs));
    }
    const found = data.code[row[place.name]];
    if (found) groups.append(loopMix(found));
    cell.append(groups);
    line2.append(cell);
    return line2;
  }
  function toggle(line) {
    const button = line.querySelector("th button");
    const open = button.getAttribute("aria-expanded") === "true";
    if (open) {
      line.detail.remove();
      line.detail = undefined;
    } else {
      line.detail = details(line);
      line.after(line.detail);
    }
    button.setAttribute("aria-expanded", String(!open));
  }
  for (const line of lines) {
    line.addEventListener("click", (event) => {
      if (!event.target.closest("button") && String(window.getSelection())) return;
      toggle(line);
    });
  }

  // Tips: what a mark stands for, on pointing or tapping; the same words are in its title element.
  const tip = document.getElementById("tip");
  function point(event) {
    const mark = event.target.closest ? event.target.closest("[data-tip]") : null;
    tip.hidden = !mark;
    if (!mark) return;
    tip.textContent = mark.dataset.tip;
    const box = mark.getBoundingClientRect();
    const width = tip.offsetWidth, height = tip.offsetHeight;
    const x = Math.min(Math.max(8, box.x + box.width / 2 - width / 2), document.documentElement.clientWidth - width - 8);
    const y = box.y - height - 8 < 8 ? box.bottom + 8 : box.y - height - 8;
    tip.style.left = `${x}px`;
    tip.style.top = `${y}px`;
  }
  document.addEventListener("pointerover", point);
  document.addEventListener("pointerdown", point);
  document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true, capture: true });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });
  for (const title of document.querySelectorAll(".chart [data-tip] > title")) title.remove();

  form.hidden = false;
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    search.value = "";
    for (const select of selects) select.value = "";
    filter();
  });
  filter();
})();
