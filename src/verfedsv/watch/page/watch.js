"use strict";

// Everything that comes from a run is set as text or as a number of a drawing, never as markup.
const SVG = "http://www.w3.org/2000/svg";
const NARROWEST = 240, HEIGHT = 256, LEFT = 64, RIGHT = 12, TOP = 12, BOTTOM = 44, HALF_A_LABEL = 32;
const QUIET_MS = 20000; // between two announcements of new numbers to those who listen to the page
const EVERY_MS = 1000;
const MINUS = "\u2212";

const at = (id) => document.getElementById(id);

function element(kind, text, attributes = {}) {
  const made = document.createElement(kind);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function drawn(kind, attributes, text) {
  const made = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function show(id, text) {
  at(id).textContent = text;
  at(id).hidden = !text;
}

function bar(amount, low, high) {
  const box = element("div", undefined, { class: "bar", "aria-hidden": "true" });
  if (amount === null || high <= low) return box;
  const place = (number) => (100 * (number - low)) / (high - low);
  const part = element("span", undefined, amount < 0 ? { class: "negative" } : {});
  part.style.left = `${place(Math.min(0, amount))}%`;
  part.style.width = `${place(Math.max(0, amount)) - place(Math.min(0, amount))}%`;
  box.append(part);
  return box;
}

// Of a table, which the report describes: each cell is [text, number], each heading [text, kind].
function row(cells, headings, low, high) {
  const made = element("tr", undefined, { role: "row" });
  headings.forEach(([heading, kind], k) => {
    const [text, number] = cells[k];
    const cell = kind === "name" ? element("th", undefined, { scope: "row", role: "rowheader" }) : element("td", undefined, { role: "cell" });
    if (kind === "bar") {
      cell.className = "wide";
      cell.append(bar(number, low, high));
    } else if (kind === "name") {
      cell.append(element("bdi", text));
    } else {
      cell.textContent = text;
      if (number !== null) cell.dataset.number = number;
    }
    // On a phone, where rows are blocks, each number says what it is.
    cell.dataset.label = heading;
    made.append(cell);
  });
  return made;
}

function head(headings) {
  const made = element("tr", undefined, { role: "row" });
  made.append(...headings.map(([text, kind]) => {
    const cell = element("th", kind === "bar" ? undefined : text, { scope: "col", role: "columnheader" });
    if (kind === "bar") cell.append(element("span", "As a bar", { class: "unseen" }));
    return cell;
  }));
  return made;
}

function table(state) {
  at("shares").hidden = state.table === null;
  if (state.table === null) return;
  const { headings, rows } = state.table;
  const drawnAt = headings.findIndex(([, kind]) => kind === "bar");
  const amounts = rows.map((cells) => cells[drawnAt][1]);
  const low = Math.min(0, ...amounts), high = Math.max(0, ...amounts);
  at("numbers").tHead.replaceChildren(head(headings));
  at("numbers").tBodies[0].replaceChildren(...rows.map((cells) => row(cells, headings, low, high)));
  at("t-shares").textContent = state.caption;
  const box = at("numbers").parentElement;
  box.classList.toggle("cut", box.scrollWidth > box.clientWidth + 1);
}

// Round numbers between two ends, about four.
function ticks(low, high) {
  const raw = (high - low) / 4, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5].find((factor) => factor * power >= raw) ?? 10);
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high + step * 1e-9 && found.length < 12; k += 1) found.push(k * step);
  return found;
}

function label(number, unit) {
  const scaled = unit ? 100 * number : number, size = Math.abs(scaled);
  const text = size !== 0 && (size < 1e-3 || size >= 1e6) ? size.toExponential(1) : String(Number(size.toPrecision(4)));
  return (scaled < 0 ? MINUS : "") + text + (unit ? "\u00a0%" : "");
}

function plot(chart, last) {
  const width = Math.max(NARROWEST, at("charts").clientWidth); // so that letters keep their size on a phone
  const values = chart.lines.flatMap((line) => line.values);
  let low = Math.min(...values, ...(chart.has_zero ? [0] : [])), high = Math.max(...values, ...(chart.has_zero ? [0] : []));
  if (!(high > low)) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const x = (round) => LEFT + ((width - LEFT - RIGHT) * round) / last;
  const y = (value) => TOP + ((HEIGHT - TOP - BOTTOM) * (high - value)) / (high - low);
  const svg = drawn("svg", { class: "plot", viewBox: `0 0 ${width} ${HEIGHT}`, "aria-hidden": "true" });
  for (const value of ticks(low, high)) {
    svg.append(
      drawn("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
      drawn("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, label(value, chart.unit)),
    );
  }
  for (const round of ticks(0, last).filter(Number.isInteger)) {
    const anchor = x(round) > width - RIGHT - HALF_A_LABEL ? "end" : "middle";
    svg.append(drawn("text", { x: x(round), y: HEIGHT - 26, "text-anchor": anchor }, round.toLocaleString("en")));
  }
  svg.append(drawn("text", { x: (LEFT + width - RIGHT) / 2, y: HEIGHT - 8, "text-anchor": "middle" }, "round"));
  for (const line of chart.lines) {
    const points = line.rounds.map((round, k) => `${x(round).toFixed(1)},${y(line.values[k]).toFixed(1)}`);
    const look = { stroke: line.colour, "stroke-dasharray": line.dash };
    svg.append(drawn("polyline", { class: "line", points: points.join(" "), ...look }));
    if (points.length === 1) {
      svg.append(drawn("circle", { cx: x(line.rounds[0]), cy: y(line.values[0]), r: 4, fill: line.colour }));
    }
  }
  return svg;
}

function key(line) {
  const made = element("span"), mark = drawn("svg", { class: "key", width: 22, height: 8, "aria-hidden": "true" });
  mark.append(drawn("line", { x1: 0, y1: 4, x2: 22, y2: 4, stroke: line.colour, "stroke-width": 3, "stroke-dasharray": line.dash }));
  made.append(mark, " ", element("bdi", line.label), `: ${line.last}`);
  return made;
}

function figure(chart, last) {
  const made = element("figure"), legend = element("p", undefined, { class: "legend" });
  legend.append(...chart.lines.map(key));
  made.append(element("figcaption", `${chart.title}. The number beside a name is the last one of its line.`), plot(chart, last), legend);
  return made;
}

let announced = { when: -Infinity, status: "" };

function announce(state, now) {
  if (state.status === announced.status && now - announced.when < QUIET_MS) return;
  announced = { when: now, status: state.status };
  at("announcement").textContent = `${state.message} ${state.headline}`;
}

let newest = null;

function render(state) {
  newest = state;
  document.title = state.run ? `Watching ${state.run}` : "Watching a training";
  at("run").textContent = state.run;
  show("headline", state.headline);
  at("title").textContent = state.title;
  show("message", `${state.message} ${state.recorded}`.trim());
  show("stalled", state.stalled);
  at("alarms").replaceChildren(...state.alarms.map((alarm) => element("p", alarm, { class: "alarm" })));
  at("warnings").replaceChildren(...state.warnings.map((warning) => element("p", warning, { class: "verdict bad" })));
  show("balance", state.balance);
  show("server", state.server);
  show("numerical-error", state.numerical_error);
  at("numerical-error").className = state.is_doubtful ? "verdict bad" : "verdict";
  at("problems").replaceChildren(...state.problems.map((problem) => element("p", problem, { class: "note" })));
  table(state);
  const charts = state.charts.filter((chart) => chart.lines.some((line) => line.values.length));
  at("training").hidden = charts.length === 0;
  at("charts").replaceChildren(...charts.map((chart) => figure(chart, Math.max(1, state.last_round))));
  announce(state, performance.now());
  document.documentElement.dataset.rounds = state.n_rounds;
  document.documentElement.dataset.status = state.status;
}

addEventListener("resize", () => { if (newest) render(newest); });

let tag = "";

// Asks for the state every second; what this page has already is not sent again.
async function follow() {
  try {
    const response = await fetch("state.json", { headers: { "If-None-Match": tag } });
    if (response.ok) {
      tag = response.headers.get("ETag");
      render(await response.json());
    }
    at("connection").textContent = "";
  } catch {
    at("connection").textContent = "(connection lost; trying again)";
  }
  setTimeout(follow, EVERY_MS);
}

follow();
