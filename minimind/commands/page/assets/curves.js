"use strict";
/* One chart: lines over a shared x axis, drawn by uPlot. What is here: smoothing, the choice of the y range, zoom for all
   charts together, values under the pointer, marks on the axis. Texts reach the page as text only. */

const Curves = (() => {
  const MARK_COLOURS = { finding: "#d4a017", rollback: "#e4572e", resume: "#2f7ed8" };
  const NEAR = 7; // pixels from a mark at which it is read
  const CUTS = [0, 0.02, 0.05, 0.1, 0.2, 0.3]; // of the visible steps, whose height may be left out above
  const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200]; // seconds
  const LATE = 0.25; // of the height, at least, for what happens in the second half

  function element(tag, properties, ...children) {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...children);
    return node;
  }

  /** Exponential mean over about `window` values, corrected for its start; gaps are passed over. */
  function runningMean(ys, window) {
    const decay = 1 - 1 / Math.max(window, 1);
    let total = 0,
      weight = 0;
    return ys.map((y) => {
      if (y !== null) {
        total = decay * total + y;
        weight = decay * weight + 1;
      }
      return weight ? total / weight : null;
    });
  }

  /** The index of the last x that is at most `x`, -1 for none. */
  function before(xs, x) {
    let low = 0,
      high = xs.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] <= x) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  function nearest(xs, x) {
    const at = before(xs, x);
    return at < 0 || (at + 1 < xs.length && xs[at + 1] - x < x - xs[at]) ? at + 1 : at;
  }

  /** y at x between the points, for marks; null outside. */
  function interpolate(xs, ys, x) {
    const at = before(xs, x);
    if (at < 0) return xs.length && x > 0 ? (ys[0] * x) / xs[0] : 0;
    if (at + 1 >= xs.length) return ys[ys.length - 1];
    return ys[at] + ((ys[at + 1] - ys[at]) * (x - xs[at])) / (xs[at + 1] - xs[at] || 1);
  }

  function short(y) {
    if (y === null || y === undefined) return "";
    const size = Math.abs(y);
    if (size >= 1e15 || (size > 0 && size < 1e-3)) return String(Number(y.toPrecision(3)).toExponential());
    for (const [unit, letter] of [
      [1e12, "T"],
      [1e9, "G"],
      [1e6, "M"],
      [1e4, "k"],
    ])
      if (size >= unit) return `${Number((y / (letter === "k" ? 1e3 : unit)).toPrecision(4))}${letter}`;
    return String(Number(y.toPrecision(5)));
  }

  function duration(seconds) {
    if (seconds === null || seconds === undefined) return "";
    const whole = Math.round(seconds),
      two = (n) => String(n).padStart(2, "0");
    if (whole < 60) return `${whole}s`;
    if (whole < 3600) return `${Math.floor(whole / 60)}m${two(whole % 60)}s`;
    if (whole < 86400) return `${Math.floor(whole / 3600)}h${two(Math.floor((whole % 3600) / 60))}m`;
    return `${Math.floor(whole / 86400)}d${two(Math.floor((whole % 86400) / 3600))}h`;
  }

  /** What all charts share: settings, and the part of the x axis that is looked at. */
  class View {
    constructor() {
      this.x = "step";
      this.y = "auto";
      this.smoothing = 0.01; // share of the points that one mean covers
      this.part = null; // [from, to] by hand, {last: share}, or null: all
      this.charts = [];
    }

    extent() {
      const spans = this.charts.map((chart) => chart.extent).filter((span) => span !== null);
      return spans.length ? [Math.min(...spans.map((s) => s[0])), Math.max(...spans.map((s) => s[1]))] : [0, 1];
    }

    span() {
      const [from, to] = this.extent();
      if (Array.isArray(this.part)) return this.part;
      return this.part ? [to - (to - from) * this.part.last, to] : [from, to > from ? to : from + 1];
    }

    look(part) {
      this.part = part;
      for (const chart of this.charts) chart.redraw();
    }
  }

  class Chart {
    /** `spec`: title, lines, marks, scale ("focus", "log", "linear" or "counts"), base, above (a text's maker). */
    constructor(view, spec) {
      this.view = view;
      this.hidden = new Set();
      this.plot = element("div", { className: "plot" });
      this.tip = element("div", { className: "tip", hidden: true });
      this.legend = element("div", { className: "legend" });
      this.above = element("div", { className: "above" });
      this.node = element("figure", {}, element("figcaption", {}, spec.title, this.above), this.plot, this.legend);
      this.set(spec);
      this.observer = new ResizeObserver(() => this.u && this.u.setSize(this.size()));
      this.observer.observe(this.node);
      this.node.addEventListener("mouseleave", () => (this.tip.hidden = true));
    }

    set(spec) {
      this.spec = spec;
      const drawn = spec.lines.filter((line) => !line.constant && line.xs.length);
      const firsts = drawn.map((line) => line.xs[0]),
        lasts = drawn.map((line) => line.xs[line.xs.length - 1]);
      this.extent = drawn.length ? [Math.min(...firsts), Math.max(...lasts)] : null;
    }

    close() {
      this.observer.disconnect();
      if (this.u) this.u.destroy();
    }

    size() {
      return { width: Math.max(this.plot.clientWidth, 200), height: this.plot.clientWidth < 420 ? 210 : 250 };
    }

    /** Build the chart anew: other lines, another scale, another language. */
    draw() {
      const { series, tables, bands } = this.series();
      this.logarithmic = this.wantsLog();
      if (this.u) this.u.destroy();
      this.plot.textContent = "";
      this.u = new uPlot(this.options(series, bands), uPlot.join(tables), this.plot);
      this.u.over.append(this.tip);
      this.touch();
      this.drawLegend();
    }

    /** The same lines with more in them. */
    refresh() {
      const { series, tables } = this.series();
      if (!this.u || series.length !== this.u.series.length || this.logarithmic !== this.wantsLog()) this.draw();
      else this.u.setData(uPlot.join(tables));
    }

    redraw() {
      if (this.u) this.u.setData(this.u.data);
    }

    /** uPlot's series of our lines: smoothed ones also faintly as they are, in buckets as a band. */
    series() {
      const series = [{}],
        tables = [],
        bands = [];
      const add = (line, ys, options) => {
        const show = !this.hidden.has(line.label);
        tables.push([line.xs, ys]);
        series.push({ stroke: line.colour, width: 1, points: { show: false }, show, line, ...options });
      };
      for (const line of this.spec.lines) {
        if (line.low) {
          for (const ys of [line.high, line.low]) add(line, ys, { stroke: `${line.colour}33` });
          bands.push({ series: [series.length - 2, series.length - 1], fill: `${line.colour}22` });
        } else if (line.smooth) add(line, line.ys, { stroke: `${line.colour}55` });
        const window = Math.max(1, this.view.smoothing * line.ys.length);
        line.mean = line.smooth ? runningMean(line.ys, window) : line.ys;
        const points = line.dots ? { show: true, size: 6, fill: line.colour } : { show: false };
        const width = line.faint ? 1 : line.smooth ? 2 : 1.5;
        const stroke = line.faint ? `${line.colour}88` : line.colour;
        add(line, line.mean, { width, points, main: !line.faint, dash: line.dash, stroke });
      }
      return { series, tables, bands };
    }

    values() {
      const all = this.spec.lines.flatMap((line) => [...(line.low || line.ys), ...(line.high || [])]);
      return all.filter((y) => y !== null);
    }

    wantsLog() {
      const values = this.values();
      if (!values.length || this.view.y === "all" || this.spec.scale === "counts") return false;
      let least = Infinity,
        most = -Infinity;
      for (const y of values) {
        least = Math.min(least, y);
        most = Math.max(most, y);
      }
      if (least <= 0) return false;
      return this.view.y === "log" || (this.spec.scale === "log" && most / least > 10);
    }

    options(series, bands) {
      const style = getComputedStyle(document.documentElement),
        colour = (name) => style.getPropertyValue(name).trim();
      const base = this.spec.base || 10,
        font = "11px system-ui, sans-serif";
      const power = (y) => Math.abs(Math.log(y) / Math.log(base) - Math.round(Math.log(y) / Math.log(base))) < 1e-6;
      // On a logarithmic axis lines at the powers alone: those between them are a grey band on a phone.
      const filter = (u, splits, i) => (i === 1 && this.logarithmic ? splits.map((y) => (power(y) ? y : null)) : splits);
      const ruled = { stroke: colour("--line"), width: 1, filter };
      const axis = { stroke: colour("--soft"), font, grid: ruled, ticks: { ...ruled, size: 5 } };
      const timed = this.view.x === "elapsed",
        xText = timed ? duration : short;
      const steps = timed ? { incrs: [...TIMES, ...TIMES.map((seconds) => seconds * 86400)] } : {};
      const yScale = { distr: this.logarithmic ? 3 : 1, log: base };
      return {
        ...this.size(),
        series,
        bands,
        legend: { show: false },
        scales: {
          x: { time: false, range: () => this.view.span() },
          y: { ...yScale, range: (u) => this.range(u) },
        },
        axes: [
          { ...axis, ...steps, size: 30, space: 60, values: (_, xs) => xs.map((x) => (Number.isInteger(x) ? xText(x) : "")) },
          { ...axis, size: 58, space: 34, values: (_, ys) => ys.map((y) => (y === null ? "" : short(y))) },
        ],
        cursor: {
          y: false,
          points: { show: false },
          drag: { x: true, y: false, setScale: false },
          bind: { dblclick: () => () => this.view.look(null) },
        },
        hooks: {
          setSelect: [(u) => this.zoom(u)],
          setCursor: [(u) => this.read(u)],
          draw: [(u) => this.drawMarks(u)],
        },
      };
    }

    /** The y range of what is visible. In "focus" the first steps' height may be left out, until the second half of
        what is visible has its share: a loss that falls from 7 to 0.6 is no flat line then. */
    range(u) {
      const [from, to] = this.view.span(),
        [xs] = u.data;
      const first = Math.max(before(xs, from), 0),
        last = Math.max(before(xs, to), first);
      let least = Infinity,
        most = -Infinity,
        lateMost = -Infinity;
      const tops = CUTS.map(() => -Infinity);
      for (let s = 1; s < u.series.length; s++) {
        if (!u.series[s].show) continue;
        const ys = u.data[s];
        for (let i = first; i <= last; i++) {
          const y = ys[i];
          if (y === null || y === undefined) continue;
          least = Math.min(least, y);
          most = Math.max(most, y);
          if (!u.series[s].main || u.series[s].line.constant) continue;
          const share = (xs[i] - from) / (to - from || 1);
          if (share >= 0.5) lateMost = Math.max(lateMost, y);
          for (let c = 0; c < CUTS.length; c++) if (share >= CUTS[c]) tops[c] = Math.max(tops[c], y);
        }
      }
      this.above.textContent = "";
      if (most - least < 1e-6 * Math.abs(most)) least = most; // the rounding of a constant
      if (least === Infinity) return this.logarithmic ? [1, 10] : [0, 1];
      if (this.logarithmic) return uPlot.rangeLog(least, most, this.spec.base || 10, false);
      let top = most;
      if (this.spec.scale === "focus" && this.view.y === "auto" && lateMost > -Infinity) {
        const cut = tops.findIndex((t) => t > -Infinity && (lateMost - least) / (t - least || 1) >= LATE);
        const chosen = tops[cut < 0 ? CUTS.length - 1 : cut];
        if (cut !== 0 && chosen > least) top = Math.min(most, chosen + (chosen - least) * 0.1);
        if (top < most) this.above.textContent = this.spec.above(short(most));
      }
      const space = (top - least) * 0.06 || Math.abs(top) * 0.1 || 1;
      return [least >= 0 && least - space < 0 ? 0 : least - space, top + space];
    }

    zoom(u) {
      const { left, width } = u.select;
      if (width < 6) return;
      const part = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
      u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      this.view.look(part);
    }

    /** The values under the pointer, and the marks near it. */
    read(u) {
      const { left, top } = u.cursor;
      this.tip.hidden = left < 0 || left === undefined;
      if (this.tip.hidden) return;
      const x = u.posToVal(left, "x");
      const rows = [];
      let at = null;
      for (const line of this.spec.lines) {
        if (this.hidden.has(line.label) || !line.xs.length) continue;
        if (line.faint && (x < line.xs[0] || x > line.xs[line.xs.length - 1])) continue;
        const i = line.constant ? 0 : nearest(line.xs, x),
          y = line.ys[i];
        if (y === null) continue;
        if (at === null && !line.constant && !line.dots) at = line.xs[i];
        const where = line.dots ? ` (${this.xText(line.xs[i])})` : "";
        const mean = line.smooth && line.mean[i] !== y ? ` (≈ ${short(line.mean[i])})` : "";
        const spread =
          line.low && line.low[i] !== line.high[i] ? ` [${short(line.low[i])} – ${short(line.high[i])}]` : "";
        const value = element("b", {}, short(y));
        rows.push(element("div", {}, dot(line.colour), `${line.label} `, value, `${spread}${mean}${where}`));
      }
      const marks = this.spec.marks.filter((mark) => Math.abs(u.valToPos(mark.x, "x") - left) <= NEAR);
      for (const mark of marks.slice(0, 4))
        rows.push(element("div", { className: "marked" }, dot(MARK_COLOURS[mark.kind]), mark.text));
      if (marks.length > 4) rows.push(element("div", {}, `+ ${marks.length - 4}`));
      this.tip.replaceChildren(element("div", { className: "soft" }, this.xText(at ?? x)), ...rows);
      this.place(left, top);
    }

    xText(x) {
      return this.view.x === "elapsed" ? duration(x) : `${this.spec.xName} ${Math.round(x).toLocaleString("en")}`;
    }

    place(left, top) {
      const { width, height } = this.tip.getBoundingClientRect(),
        room = this.u.over.clientWidth;
      const right = left + 14 + width <= room;
      this.tip.style.left = `${right ? left + 14 : Math.max(Math.min(left - 14, room) - width, -50)}px`;
      this.tip.style.top = `${Math.max(Math.min(top - height / 2, this.u.over.clientHeight - height), 0)}px`;
    }

    drawMarks(u) {
      const { ctx, bbox } = u,
        scale = window.devicePixelRatio || 1;
      ctx.save();
      for (const mark of this.spec.marks) {
        const x = u.valToPos(mark.x, "x", true);
        if (x < bbox.left || x > bbox.left + bbox.width) continue;
        ctx.strokeStyle = ctx.fillStyle = MARK_COLOURS[mark.kind];
        ctx.globalAlpha = 0.55;
        ctx.lineWidth = scale;
        ctx.setLineDash([3 * scale, 3 * scale]);
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
        ctx.globalAlpha = 1;
        ctx.beginPath();
        ctx.moveTo(x - 4.5 * scale, bbox.top + bbox.height + 7 * scale);
        ctx.lineTo(x + 4.5 * scale, bbox.top + bbox.height + 7 * scale);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.fill();
      }
      ctx.restore();
    }

    drawLegend() {
      const labels = new Map(this.spec.lines.map((line) => [line.label, line]));
      this.legend.replaceChildren();
      if (labels.size < 2) return;
      for (const [label, line] of labels) {
        const button = element("button", { type: "button" }, dot(line.colour, line.dash), label);
        button.setAttribute("aria-pressed", String(!this.hidden.has(label)));
        button.addEventListener("click", () => this.toggle(label));
        this.legend.append(button);
      }
    }

    toggle(label) {
      if (!this.hidden.delete(label)) this.hidden.add(label);
      const show = !this.hidden.has(label);
      this.u.series.forEach((series, i) => i && series.line.label === label && this.u.setSeries(i, { show }));
      this.drawLegend();
    }

    /** A finger moves the cursor; up and down it scrolls the page. */
    touch() {
      const move = (event) => {
        const box = this.u.over.getBoundingClientRect(),
          [finger] = event.touches;
        const left = Math.min(Math.max(finger.clientX - box.left, 0), box.width - 1);
        this.u.setCursor({ left, top: finger.clientY - box.top });
      };
      this.u.over.addEventListener("touchstart", move, { passive: true });
      this.u.over.addEventListener("touchmove", move, { passive: true });
    }
  }

  /** A line's mark in a legend; a ring for one that is not drawn through. */
  function dot(colour, dashed) {
    const node = element("span", { className: "dot" });
    if (dashed) node.style.border = `2px solid ${colour}`;
    else node.style.background = colour;
    return node;
  }

  return { Chart, View, element, dot, duration, short, interpolate, runningMean };
})();
