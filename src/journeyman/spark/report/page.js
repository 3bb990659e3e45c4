/* Draws the charts of the page with uPlot. All of them share one time axis and one cursor. */
(() => {
  const STEPS = [1, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 6e10, 6e11, 3.6e12, 3.6e13, 8.64e13, 8.64e14, 8.64e15, 8.64e16];
  const UNITS = {
    ns: [[1, "ns"], [1e3, "µs"], [1e6, "ms"], [1e9, "s"], [6e10, "min"], [3.6e12, "h"], [8.64e13, "d"]],
    bytes: [[1, "B"], [2 ** 10, "KiB"], [2 ** 20, "MiB"], [2 ** 30, "GiB"], [2 ** 40, "TiB"]],
    count: [[1, ""], [1e3, "k"], [1e6, "M"], [1e9, "G"]],
  };
  const tidy = (number, digits) => number.toLocaleString("en", { maximumFractionDigits: digits });
  const format = (value, unit) => {
    if (value == null) return "–";
    if (unit === "count" && Math.abs(value) < 1e9) return tidy(value, 1);
    const [size, name] = UNITS[unit].findLast(([size]) => Math.abs(value) >= size) ?? UNITS[unit][0];
    const number = value / size;
    return number ? tidy(number, Math.abs(number) >= 100 || size === 1 ? 0 : 1) + (name && " " + name) : "0";
  };
  /* Ticks of one axis have one unit, that of the highest. */
  const ticks = (values, unit) => {
    const units = unit === "count" ? UNITS.count : UNITS[unit];
    const most = Math.max(...values);
    const [size, name] = (unit === "count" && most < 1e5 ? null : units.findLast(([size]) => most >= size)) ?? units[0];
    return values.map((value) => value ? tidy(value / size, 3) + (name && " " + name) : "0");
  };
  const colour = (tone) => getComputedStyle(document.documentElement).getPropertyValue("--" + tone).trim();
  const TONES = { mid: "accent-mid", soft: "accent-soft" };
  const paint = (tone) => colour(TONES[tone] ?? tone);
  /* uPlot draws across undefined and not across null: a bucket or two without a start are bridged,
     but no line leads through a quiet night, or over a gap that was cut out of the axis. */
  const BRIDGED = 2;
  const values_of = (gaps) => ({ values }) => {
    const drawn = values.map((value) => value ?? undefined);
    for (let at = 0; at < values.length; at++) {
      let end = at;
      while (end < values.length && values[end] == null) end++;
      if (end - at > BRIDGED) drawn.fill(null, at, end);
      at = end;
    }
    for (const at of gaps) drawn[at] = null;
    return drawn;
  };
  const plots = [];

  const marks = (drawn) => (u) => {
    const { left, top, width, height } = u.bbox;
    const step = width / drawn.times.length;
    u.ctx.save();
    u.ctx.fillStyle = colour("frame");
    for (const at of drawn.partial) u.ctx.fillRect(left + at * step, top, step, height);
    u.ctx.strokeStyle = colour("edge");
    u.ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    for (const at of drawn.gaps) {
      const x = left + (at + 0.5) * step;
      u.ctx.beginPath();
      u.ctx.moveTo(x, top);
      u.ctx.lineTo(x, top + height);
      u.ctx.stroke();
    }
    u.ctx.restore();
  };

  /* Where a value is a step between nothing on both sides, a line would not show it. */
  const points = (u, at) => {
    const values = u.data[at];
    return values.flatMap((value, i) => value != null && values[i - 1] == null && values[i + 1] == null ? [i] : []);
  };

  const draw = (figure, drawn) => {
    const box = figure.querySelector(".plot");
    const size = drawn.times.length;
    const x = drawn.times.map((_, at) => at);
    const stacked = drawn.kind === "bars", nested = drawn.kind === "nested";
    let order = [...drawn.series];
    const columns = order.map(values_of(drawn.gaps));
    if (stacked) {
      for (let at = 1; at < columns.length; at++) {
        columns[at] = columns[at].map((value, i) => value == null ? value : value + (columns[at - 1][i] ?? 0));
      }
    }
    /* Later series lie on top, so the highest of stacked and nested ones comes first. */
    if (stacked || nested) { order.reverse(); columns.reverse(); }
    const known = columns.flat().filter((value) => value != null);
    const most = Math.max(...known, 0), least = Math.min(...known.filter((value) => value > 0), most || 1);
    const wide = nested && most > 50 * least;
    const lowest = STEPS.findLast((step) => step <= least) ?? 1;
    const series = order.map((each) => ({
      label: each.name,
      stroke: nested ? paint(each.tone === "soft" ? "accent-mid" : each.tone) : paint(each.tone),
      fill: stacked || nested ? paint(each.tone) : order.length === 1 ? paint("accent-soft") : undefined,
      width: nested ? 1 : stacked ? 0 : each.tone === "edge" ? 1 : 1.6,
      dash: !stacked && !nested && each.tone === "edge" ? [4, 3] : undefined,
      paths: stacked ? uPlot.paths.bars({ size: [0.8, 40], align: 0 }) : uPlot.paths.linear(),
      points: stacked ? { show: false } : { show: true, filter: points, size: 5 },
      value: (u, value, _, at) => at == null ? "" : format(each.values[at], drawn.unit),
    }));
    /* As many times as there is room for; where a stretch begins after a gap matters most. */
    const wanted = (u) => {
      const apart = 76 * devicePixelRatio * size / u.bbox.width, taken = [];
      const begins = drawn.ticks.filter(([at]) => drawn.gaps.includes(at - 1)).reverse();
      for (const tick of [...begins, ...drawn.ticks]) {
        if (taken.every(([at]) => Math.abs(at - tick[0]) >= apart)) taken.push(tick);
      }
      return taken.sort(([a], [b]) => a - b);
    };
    const axis = { stroke: colour("dim"), font: "12px system-ui, sans-serif", ticks: { show: false } };
    const plot = new uPlot({
      width: box.clientWidth, height: 220, ms: 1,
      padding: [12, 24, 0, 4],
      cursor: {
        sync: drawn.shared ? { key: "report" } : undefined, drag: { x: false, y: false },
        y: false, points: { size: 6 },
      },
      scales: {
        x: { time: false, range: [-0.5, size - 0.5] },
        y: wide
          ? { distr: 4, asinh: lowest, range: [0, most * 1.6] }
          : { range: (u, low, high) => [0, high > 0 ? high * 1.06 : 1] },
      },
      axes: [
        { ...axis, grid: { show: false }, size: 28, splits: (u) => wanted(u).map(([at]) => at), values: (u) => wanted(u).map(([, text]) => text) },
        {
          ...axis, size: 66, grid: { stroke: colour("line"), width: 1 },
          splits: wide ? () => [0, ...STEPS.filter((step) => step >= lowest && step <= most * 1.6)] : undefined,
          filter: (u, found) => found,
          incrs: drawn.unit === "count" ? [1, 2, 5].flatMap((n) => [...Array(16).keys()].map((p) => n * 10 ** p)).sort((a, b) => a - b) : drawn.unit === "ns" ? UNITS.ns.flatMap(([size]) => [1, 2, 5, 10, 20, 50, 100, 200].map((n) => n * size)).sort((a, b) => a - b) : [...Array(60).keys()].map((power) => 2 ** power),
          values: (u, found) => wide ? found.map((value) => format(value, drawn.unit)) : ticks(found, drawn.unit),
        },
      ],
      series: [{ label: "", value: (u, _, __, at) => at == null ? "" : drawn.times[at] ?? "no records" }, ...series],
      hooks: { drawClear: [marks(drawn)] },
      legend: { live: true, markers: { width: 0, fill: (u, at) => at ? paint(order[at - 1].tone) : "transparent" } },
    }, [x, ...columns], box);
    plot.root.setAttribute("role", "img");
    plot.root.setAttribute("aria-label", drawn.title);
    return plot;
  };

  const redraw = () => {
    for (const plot of plots.splice(0)) plot.destroy();
    for (const figure of document.querySelectorAll("figure")) {
      const data = figure.querySelector('script[type="application/json"]');
      plots.push(draw(figure, JSON.parse(data.textContent)));
    }
  };
  redraw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  const watch = new ResizeObserver(() => {
    document.querySelectorAll("figure .plot").forEach((box, at) => {
      if (plots[at] && plots[at].width !== box.clientWidth && box.clientWidth) {
        plots[at].setSize({ width: box.clientWidth, height: plots[at].height });
      }
    });
  });
  watch.observe(document.querySelector("main"));
  document.querySelectorAll("figure").forEach((figure, number) => {
    const to = (at) => {
      const u = plots[number], last = u.data[0].length - 1;
      if (at == null) return u.setCursor({ left: -10, top: -10 });
      const place = Math.min(Math.max(at, 0), last);
      u.setCursor({ left: u.valToPos(place, "x"), top: 1 });
    };
    figure.addEventListener("keydown", (event) => {
      const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "Escape") to(null);
      if (!way || event.target !== figure) return;
      event.preventDefault();
      to((plots[number].cursor.idx ?? -1) + way);
    });
  });
})();
