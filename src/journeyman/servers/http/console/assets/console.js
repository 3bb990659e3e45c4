// The console works without this file. Here: charts, filters, selection, and keys.
"use strict";
(() => {
  const one = (selector) => document.querySelector(selector);
  const all = (selector) => [...document.querySelectorAll(selector)];

  // Keys: / goes to the search field, g then a letter to a page, ? nothing hidden.
  let before = "";
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      event.preventDefault();
      one("#q, #find").focus();
    } else if (before === "g") {
      const links = all(".side a").filter((each) => each.textContent[0].toLowerCase() === event.key);
      const here = links.findIndex((each) => each.hasAttribute("aria-current"));
      if (links.length) links[(here + 1) % links.length].click();
    }
    before = event.key;
  });

  // Things that only make sense with a script.
  all(".needs-script, [data-all]").forEach((each) => { each.hidden = false; });
  all("[data-all]").forEach((button) => button.addEventListener("click", () => {
    const boxes = all(`[data-select="${button.dataset.all}"]`);
    const wanted = !boxes.every((box) => box.checked);
    boxes.forEach((box) => { box.checked = wanted; });
  }));

  // The tail: a filter, a pause, and no more rows than a page can show.
  const tail = one("#tail"), filter = one("#filter"), pause = one("#pause");
  if (tail) {
    const sift = () => {
      const words = filter.value.toLowerCase();
      for (const row of tail.rows) row.hidden = !row.textContent.toLowerCase().includes(words);
    };
    filter.addEventListener("input", sift);
    pause.addEventListener("click", () => {
      const paused = pause.getAttribute("aria-pressed") !== "true";
      pause.setAttribute("aria-pressed", paused);
      pause.textContent = paused ? "Continue" : "Pause";
    });
    document.body.addEventListener("htmx:sseBeforeMessage", (event) => {
      if (pause.getAttribute("aria-pressed") === "true") event.preventDefault();
    });
    document.body.addEventListener("htmx:afterSwap", () => {
      while (tail.rows.length > 300) tail.rows[tail.rows.length - 1].remove();
      sift();
    });
  }

  // The slider of the time machine moves the field beside it.
  const slider = one("#slider");
  if (slider) {
    const field = one("#at"), from = Number(slider.dataset.from), to = Number(slider.dataset.to);
    slider.addEventListener("input", () => {
      const moment = from + (to - from) * slider.value / 1000;
      field.value = new Date(moment).toISOString();
    });
  }

  // Rates, live: the last hour came with the page.
  const place = one("#chart");
  if (place && window.uPlot) {
    const found = JSON.parse(place.dataset.chart);
    const names = ["schedule_rate", "work_rate", "fan_out_rate", "run_rate"];
    const labels = ["schedule", "work queue", "fan-out", "runs"];
    const colours = ["#2f7dd1", "#8b6fd6", "#2e9e62", "#d18a1f"];
    const now = Date.now() / 1000;
    const data = [found.times.map((time) => now + time), ...names.map((name) => found[name])];
    const ink = getComputedStyle(document.documentElement).getPropertyValue("--dim");
    const axis = { stroke: ink, grid: { stroke: "rgba(128,128,128,.18)" }, ticks: { show: false } };
    const chart = new uPlot({
      width: place.clientWidth, height: 180, cursor: { drag: { x: false } },
      scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
      axes: [axis, { ...axis, size: 60 }],
      series: [{}, ...labels.map((label, index) => ({
        label, stroke: colours[index], width: 1.6, points: { show: false },
        value: (_, number) => number === null ? "–" : number.toFixed(1),
      }))],
    }, data, place);
    addEventListener("resize", () => chart.setSize({ width: place.clientWidth, height: 180 }));
    document.body.addEventListener("htmx:afterSwap", () => {
      const tiles = one(".tiles");
      if (!tiles) return;
      const series = JSON.parse(tiles.dataset.series);
      data[0].push(Date.now() / 1000);
      names.forEach((name, index) => data[index + 1].push(series[name]));
      if (data[0].length > 3600) data.forEach((each) => each.shift());
      chart.setData(data);
    });
  }
})();
