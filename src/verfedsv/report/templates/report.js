"use strict";
// Replaces the drawn charts by interactive ones, with the numbers of the summary.
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const curves = read("curves"), specs = read("charts");
  const styles = curves.styles;
  // Names are taken from the page, where they are printable.
  const points = (number, name, curve) => curve.rounds.map((round, k) => ({
    line: number, name, round, value: curve.values[k], ...styles[number % styles.length],
  }));
  const boxes = [...document.querySelectorAll("input[data-client]")];
  const nameOf = (box) => box.parentElement.querySelector("bdi").textContent;
  const kind = () => document.querySelector("input[name=kind]:checked").value;
  const linesOfClients = () => boxes.filter((box) => box.checked).flatMap((box) => {
    const number = Number(box.dataset.client);
    return points(number, nameOf(box), curves.clients[number][kind()]);
  });
  const linesOfTraining = (name) => curves.training[name].flatMap(([metric, line], number) =>
    points(number, line, metric ? curves.metrics[metric] : curves.losses));
  const options = { mode: "vega-lite", renderer: "svg", actions: false, ast: true,
    defaultStyle: false, tooltip: { disableDefaultStyle: true } }; // the page allows no style sheet but its own

  const draw = async (place) => {
    const name = place.dataset.chart, spec = specs[name];
    if (name === "rounds") {
      spec.data.values = linesOfClients();
    } else if (name !== "shares") {
      spec.data.values = linesOfTraining(name);
    }
    const { view } = await vegaEmbed(place, spec, options);
    // The container has a description; the parts of a drawing would be noise to a screen reader.
    place.querySelector("svg").setAttribute("aria-hidden", "true");
    return view;
  };
  const views = Promise.all([...document.querySelectorAll(".chart")].map(async (place) => {
    const view = await draw(place);
    if (place.dataset.chart !== "rounds") return;
    const again = async () => {
      await view.data("lines", linesOfClients()).runAsync();
      place.dataset.lines = boxes.filter((box) => box.checked).length;
    };
    for (const input of document.querySelectorAll("input[name=kind]")) {
      input.addEventListener("change", () => {
        for (const text of document.querySelectorAll("p[data-kind]")) text.hidden = text.dataset.kind !== kind();
      });
    }
    for (const input of document.querySelectorAll(".controls input:not([type=search])")) {
      input.addEventListener("change", again);
    }
    const wanted = { all: () => true, none: () => false, first: (k) => k < curves.n_shown };
    for (const button of document.querySelectorAll("button[data-choose]")) {
      button.addEventListener("click", () => {
        boxes.forEach((box, k) => { box.checked = wanted[button.dataset.choose](k); });
        again();
      });
    }
    document.querySelector(".controls").hidden = false;
  }));
  document.getElementById("find")?.addEventListener("input", (event) => {
    const text = event.target.value.trim().toLowerCase();
    for (const box of boxes) box.parentElement.hidden = !nameOf(box).toLowerCase().includes(text);
  });
  // On a phone, rows are blocks: each number gets its label, and roles keep tables readable for screen readers.
  for (const table of document.querySelectorAll("table")) {
    const labels = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
    table.setAttribute("role", "table");
    for (const row of table.rows) {
      row.setAttribute("role", "row");
      [...row.cells].forEach((cell, k) => {
        cell.dataset.label = labels[k];
        cell.setAttribute("role", cell.tagName === "TD" ? "cell" : `${cell.scope === "row" ? "row" : "column"}header`);
      });
    }
  }
  const boxesOfTables = [...document.querySelectorAll(".scroll")];
  const sayWhatIsCut = () => {
    for (const box of boxesOfTables) box.classList.toggle("cut", box.scrollWidth > box.clientWidth + 1);
  };
  sayWhatIsCut();
  window.addEventListener("resize", sayWhatIsCut);
  window.addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll("details")) part.open = true;
  });
  views.then(() => { document.documentElement.dataset.ready = "yes"; });
})();
