// What a page can do beyond standing there: tables are sorted and searched, curves say their numbers.
"use strict";

const text = (cell) => cell.dataset.value ?? cell.textContent.trim();
const number = (cell) => parseFloat(text(cell).replace(/[\u2212]/g, "-").replace(/[,\u00a0~<]/g, ""));

function sort(table, column, down) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const cells = rows.map((row) => row.cells[column]);
  const numeric = cells.every((cell) => text(cell) === "–" || !isNaN(number(cell)));
  const key = (row) => (numeric ? number(row.cells[column]) : text(row.cells[column]));
  rows.sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (numeric) return (isNaN(x) - isNaN(y)) || (down ? y - x : x - y);
    return down ? y.localeCompare(x) : x.localeCompare(y);
  });
  body.append(...rows);
  [...table.tHead.rows[0].cells].forEach((head, k) => {
    if (k === column) head.setAttribute("aria-sort", down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  });
}

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    button.onclick = () => sort(table, column, head.getAttribute("aria-sort") !== "descending");
    head.append(button);
  });
}

function filter(name) {
  const of = (kind) => document.querySelector(`${kind}[data-table="${name}"]`);
  const words = of("input").value.toLowerCase().split(/\s+/).filter(Boolean);
  const kind = of("select").value;
  const rows = [...document.getElementById(name).tBodies[0].rows];
  for (const row of rows) {
    const found = row.textContent.toLowerCase();
    const right = !kind || row.dataset.kinds.split(",").includes(kind);
    row.hidden = !(right && words.every((word) => found.includes(word)));
  }
  const left = rows.filter((row) => !row.hidden).length;
  of(".count").textContent = `${left} of ${rows.length} shown`;
}

for (const controls of document.querySelectorAll(".controls")) {
  controls.hidden = false;
  for (const control of controls.querySelectorAll("input, select")) {
    control.oninput = () => filter(control.dataset.table);
  }
  filter(controls.querySelector("input").dataset.table);
}

const short = (value, percent) =>
  percent ? `${(100 * value).toFixed(1)} %` : Number(value.toPrecision(4)).toLocaleString("en");

function nearest(points, x) {
  return points.reduce((best, point) => (Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best));
}

function follow(svg, panels) {
  const NS = "http://www.w3.org/2000/svg";
  const rule = svg.appendChild(document.createElementNS(NS, "line"));
  rule.setAttribute("class", "rule");
  const box = document.body.appendChild(document.createElement("div"));
  box.className = "tip";
  box.hidden = true;
  const hide = () => { box.hidden = true; rule.style.display = "none"; };
  hide();
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointermove", (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const panel = panels.find(({ box: [l, t, r, b] }) => at.x >= l && at.x <= r && at.y >= t && at.y <= b);
    if (!panel) return hide();
    const [left, top, right, bottom] = panel.box;
    const [low, high] = panel.x;
    const x = low + ((at.x - left) / (right - left)) * (high - low);
    const found = panel.curves.map((curve) => [curve, nearest(curve.points, x)]);
    const on = found.reduce((a, b) => (Math.abs(b[1][0] - x) < Math.abs(a[1][0] - x) ? b : a))[1][0];
    const place = left + ((on - low) / (high - low)) * (right - left);
    Object.entries({ x1: place, x2: place, y1: top, y2: bottom }).forEach(([k, v]) => rule.setAttribute(k, v));
    rule.style.display = "";
    box.replaceChildren(Object.assign(document.createElement("b"), {
      textContent: `${short(on, panel.percent[0])} ${panel.name}` }));
    for (const [curve, point] of found) {
      const line = document.createElement("div");
      const dot = document.createElement("span");
      dot.className = "dot";
      dot.style.setProperty("--accent", `var(--${curve.color})`);
      line.append(dot, `${curve.name} ${short(point[1], panel.percent[1])}`);
      if (point[0] !== on) line.append(` (at ${short(point[0], panel.percent[0])})`);
      box.append(line);
    }
    box.hidden = false;
    const edge = document.documentElement.clientWidth - box.offsetWidth - 8;
    box.style.left = `${Math.max(8, Math.min(event.clientX + 14, edge))}px`;
    box.style.top = `${event.clientY + 14}px`;
  });
}

for (const data of document.querySelectorAll("script.hover")) {
  follow(data.parentElement.querySelector("svg"), JSON.parse(data.textContent));
}
