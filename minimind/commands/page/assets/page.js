"use strict";
/* The page: what the runs hold, in the reader's language, and on a served page what is new every two seconds. */

(() => {
  const { Chart, View, element, dot, duration, short, interpolate } = Curves;
  const WORDS = JSON.parse(document.getElementById("words").textContent);
  const PAGE = JSON.parse(document.getElementById("runs").textContent);
  const EVERY = 2000; // milliseconds
  const MOST_MARKS = 300; // on an axis
  const HELD_OUT = "#e4572e",
    FLOOR = "#808a94";
  const RAINBOW = ["#2f7ed8", "#e4572e", "#2a9d5c", "#9b59b6", "#d4a017", "#17a2b8", "#c2185b", "#6d4c41"];
  const several = PAGE.runs.length > 1;
  const main = document.querySelector("main");
  const view = new View();
  let language = (navigator.language || "").toLowerCase().startsWith("zh") ? "zh" : "en";
  let lost = false;

  function t(name, values) {
    const text = WORDS[language][name] ?? name;
    return values ? text.replace(/\{(\w+)\}/g, (_, key) => values[key] ?? "") : text;
  }

  /* Runs: columns of numbers, to which a served page appends. */

  function truncate(columns, step) {
    let keep = columns.step.length;
    while (keep > 0 && columns.step[keep - 1] >= step) keep--;
    for (const name of Object.keys(columns)) columns[name].length = keep;
  }

  /** A step that comes again replaces what stood from there on. */
  function append(columns, more) {
    if (!more.step.length) return;
    truncate(columns, more.step[0]);
    for (const name of Object.keys(columns))
      columns[name].push(...(more[name] || more[name.replace(/\.(low|high)$/, "")]));
  }

  function take(run, news) {
    if (news.train === undefined) return Object.assign(run, { state: news.state, number: news.number });
    if (news.keep !== null)
      for (const columns of [run.train, run.evaluations, ...Object.values(run.sources)]) truncate(columns, news.keep);
    append(run.train, news.train);
    append(run.evaluations, news.evaluations);
    for (const [name, columns] of Object.entries(news.sources)) {
      run.sources[name] ??= { step: [], loss: [] };
      append(run.sources[name], columns);
    }
    const { train, evaluations, sources, ...rest } = news;
    return Object.assign(run, rest);
  }

  /** A run's x of steps: the steps themselves, tokens or seconds. */
  function xs(run, steps) {
    if (view.x === "step") return steps;
    const { train } = run;
    return steps === train.step ? train[view.x] : steps.map((step) => interpolate(train.step, train[view.x], step));
  }

  const named = (run, name) => (several ? `${run.label}${name ? `: ${name}` : ""}` : name || run.label);
  const titled = (run, name) => (several ? run.label : t(`chart ${name}`));
  const some = (ys) => ys.some((y) => y !== null);

  /* The charts: what each has of each run. */

  function line(run, label, steps, ys, options) {
    return { label, colour: run.colour, xs: xs(run, steps), ys, ...options };
  }

  function column(run, name, label, options) {
    const ys = run.train[name];
    if (!some(ys)) return [];
    const low = run.train[`${name}.low`],
      high = run.train[`${name}.high`];
    const extremes = low ? { low, high } : {};
    return [line(run, label, run.train.step, ys, { ...options, ...extremes })];
  }

  function heldOut(run, name) {
    const ys = run.evaluations[name];
    if (!some(ys)) return [];
    const options = { dots: true, dash: [2, 4], colour: several ? run.colour : HELD_OUT };
    return [line(run, named(run, t("held-out")), run.evaluations.step, ys, options)];
  }

  /** The least loss that any model can have on the held-out texts, in the unit of an evaluation's column. */
  function floor(run, name) {
    const { evaluations } = run;
    const at = evaluations.loss.findIndex((loss, i) => loss !== null && evaluations.bits_per_byte[i]);
    if (run.floor === null || at < 0) return [];
    const bits = run.floor / Math.LN2,
      loss = (evaluations.loss[at] * bits) / evaluations.bits_per_byte[at];
    const y = { loss, ppl: Math.exp(loss), bits_per_byte: bits }[name];
    const x = xs(run, run.train.step),
      ends = x.length ? [x[0], x[x.length - 1]] : [0, 1];
    return [{ label: named(run, t("floor line")), colour: FLOOR, xs: ends, ys: [y, y], constant: true, dash: [6, 4] }];
  }

  function branches(run) {
    const options = { faint: true, dash: [2, 2] };
    const there = run.branches.filter((branch) => branch.step.length && view.x === "step");
    return there.map((branch) => line(run, named(run, t("rolled back")), branch.step, branch.loss, options));
  }

  function sourceLines() {
    const pairs = PAGE.runs.flatMap((run) =>
      Object.entries(run.sources).map(([name, columns]) => [run, name, columns]),
    );
    return pairs.map(([run, name, columns], i) =>
      line(run, named(run, name), columns.step, columns.loss, { colour: RAINBOW[i % RAINBOW.length], smooth: true }),
    );
  }

  function memory(run) {
    const unit = (ys) => ys.map((y) => (y === null ? null : y / 2 ** 30));
    return ["host", "device"]
      .filter((name) => some(run.train[`${name}_memory`]))
      .map((name, i) =>
        line(
          run,
          named(run, t(name)),
          run.train.step,
          unit(run.train[`${name}_memory`]),
          i && !several ? { colour: HELD_OUT } : {},
        ),
      );
  }

  const each = (maker) => PAGE.runs.flatMap(maker);
  const skips = (run) => (run.train.skipped.some((n) => n) ? column(run, "skipped", titled(run, "skipped")) : []);
  const smooth = (name) => () => each((run) => column(run, name, titled(run, name), { smooth: true }));
  const plain = (name) => () => each((run) => column(run, name, titled(run, name)));
  const held = (name) => () => each((run) => [...heldOut(run, name), ...floor(run, name)]);
  const losses = () => [
    ...each((run) => column(run, "loss", named(run, t("training")), { smooth: true })),
    ...held("loss")(),
    ...each(branches),
  ];
  const CHARTS = [
    ["chart loss", losses, { scale: "focus" }],
    ["chart ppl", held("ppl"), { scale: "focus" }],
    ["chart bits_per_byte", held("bits_per_byte"), { scale: "focus" }],
    ["chart sources", sourceLines, { scale: "focus" }],
    ["chart grad_norm", smooth("grad_norm"), { scale: "log" }],
    ["chart lr", plain("lr"), { scale: "linear" }],
    ["chart tokens_per_second", smooth("tokens_per_second"), { scale: "linear" }],
    ["chart memory", () => each(memory), { scale: "linear" }],
    ["chart loss_scale", plain("loss_scale"), { scale: "log", base: 2 }],
    ["chart skipped", () => each(skips), { scale: "counts" }],
  ];

  function marks(run) {
    const there = run.marks.filter((mark) => mark.step !== null && run.train.step.length);
    return there.slice(-MOST_MARKS).map((mark) => ({
      kind: mark.kind,
      x: xs(run, [mark.step])[0],
      text: `${several ? `${run.label}: ` : ""}${mark.code} (${t("step")} ${mark.step})${mark.message ? `: ${brief(mark.message)}` : ""}`,
    }));
  }

  const brief = (text) => (text.length > 160 ? `${text.slice(0, 157)}...` : text);

  function spec([name, lines, options]) {
    return {
      title: t(name),
      lines: lines().filter((one) => one.xs.length),
      marks: PAGE.runs.flatMap(marks),
      xName: t(view.x === "tokens" ? "tokens" : "step"),
      above: (value) => `↑ ${t("above", { value })}`,
      ...options,
    };
  }

  /* The parts of the page. */

  function stateText(run) {
    const { state } = run,
      name = `state ${state.code}`;
    const values = { ...state, seconds: duration(state.seconds ?? null), age: duration(state.age ?? null) };
    return t(name in WORDS.en ? name : "state other", values);
  }

  function factText(fact) {
    return fact.text === null ? fact.values.value : t(`text ${fact.text}`, fact.values);
  }

  function table(head, rows) {
    const cells = (tag, row) => row.map((cell) => element(tag, {}, cell));
    const lines = rows.map((row) => element("tr", {}, ...cells("td", row)));
    return element(
      "div",
      { className: "scroll" },
      element("table", {}, element("tr", {}, ...cells("th", head)), ...lines),
    );
  }

  const heads = () => PAGE.runs.map((run) => element("span", {}, dot(run.colour), run.label));

  function overview() {
    const names = [...new Set(PAGE.runs.flatMap((run) => run.facts.map((fact) => fact.name)))];
    const value = (run, name) => {
      const fact = run.facts.find((one) => one.name === name);
      return fact ? factText(fact) : "";
    };
    const state = (run) => element("span", { className: `state ${run.state.code}` }, stateText(run));
    const rows = [
      [t("fact state"), ...PAGE.runs.map(state)],
      ...names.map((name) => [t(`fact ${name}`), ...PAGE.runs.map((run) => value(run, name))]),
    ];
    return table(["", ...heads()], rows);
  }

  function choice(name, options, chosen, choose) {
    const group = element("span", { className: "choice" });
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", t(name));
    for (const [value, label] of options) {
      const button = element("button", { type: "button" }, t(label));
      button.dataset.value = String(value);
      button.setAttribute("aria-pressed", String(value === chosen()));
      button.addEventListener("click", () => {
        choose(value);
        for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
      });
      group.append(button);
    }
    return element("label", {}, element("span", { className: "soft" }, t(name)), group);
  }

  function toolbar() {
    const has = (name) => PAGE.runs.every((run) => !run.train.step.length || run.train[name].every((y) => y !== null));
    const axes = [
      ["step", "steps"],
      ["tokens", "tokens"],
      ["elapsed", "elapsed"],
    ].filter(([name]) => has(name));
    const slider = element("input", {
      type: "range",
      min: "0",
      max: "100",
      value: String(Math.round(Math.sqrt(view.smoothing) * 250)),
    });
    slider.setAttribute("aria-label", t("smoothing"));
    slider.addEventListener("input", () => {
      view.smoothing = (slider.value / 250) ** 2;
      refresh();
    });
    const part = () => (view.part && view.part.last) || 0;
    return element(
      "div",
      { className: "tools" },
      choice(
        "x axis",
        axes,
        () => view.x,
        (value) => ((view.x = value), (view.part = null), redraw()),
      ),
      choice(
        "y axis",
        [
          ["auto", "auto"],
          ["all", "all"],
          ["log", "log"],
        ],
        () => view.y,
        (value) => ((view.y = value), redraw()),
      ),
      choice(
        "range",
        [
          [0, "all"],
          [0.5, "half"],
          [0.1, "tenth"],
        ],
        part,
        (value) => view.look(value ? { last: value } : null),
      ),
      element("label", {}, element("span", { className: "soft" }, t("smoothing")), slider),
    );
  }

  function samples() {
    const all = PAGE.runs.flatMap((run) => run.samples.map((row) => ({ ...row, run })));
    if (!all.length) return null;
    const steps = [...new Set(all.map((row) => row.step))].sort((a, b) => a - b);
    const slider = element("input", {
      type: "range",
      min: "0",
      max: String(steps.length - 1),
      value: String(steps.length - 1),
    });
    slider.setAttribute("aria-label", t("step"));
    const label = element("b"),
      body = element("div", { className: "samples" });
    const show = () => {
      const step = steps[slider.value];
      label.textContent = `${t("step")} ${step.toLocaleString("en")}`;
      body.replaceChildren(
        ...all
          .filter((row) => row.step === step)
          .map((row) =>
            element(
              "div",
              { className: "sample" },
              element("div", { className: "soft" }, several ? `${row.run.label}: ` : ""),
              element("span", { className: "prompt" }, row.prompt),
              row.text,
            ),
          ),
      );
    };
    slider.addEventListener("input", show);
    show();
    return element("div", {}, element("div", { className: "tools" }, label, slider), body);
  }

  function findings() {
    const rows = PAGE.runs.flatMap((run) =>
      run.marks
        .filter((mark) => mark.kind !== "resume")
        .map((mark) => [
          ...(several ? [run.label] : []),
          mark.step === null ? t("before") : String(mark.step),
          mark.code,
          mark.message,
          mark.advice,
        ]),
    );
    return rows.length
      ? table([...(several ? [t("run")] : []), t("step"), t("code"), t("what"), t("advice")], rows)
      : soft(t("none"));
  }

  const soft = (text) => element("p", { className: "soft" }, text);

  function configuration() {
    const blocks = PAGE.runs.flatMap((run) => [
      ...Object.entries(run.files).map(([name, text]) =>
        element("details", {}, element("summary", {}, named(run, name)), element("pre", {}, text)),
      ),
      ...(run.missing.length ? [soft(t("missing", { run: run.label, names: run.missing.join(", ") }))] : []),
    ]);
    return element("div", {}, ...blocks);
  }

  function section(name, content) {
    return content === null ? [] : [element("section", { id: name }, element("h2", {}, t(name)), content)];
  }

  function differs() {
    if (!PAGE.differences.length) return null;
    return table(
      [t("setting"), ...heads()],
      PAGE.differences.map((row) => [row.name, ...row.values]),
    );
  }

  /* Drawing, and drawing again. */

  function redraw() {
    for (const chart of view.charts) {
      chart.set(spec(chart.kind));
      chart.hidden.clear();
    }
    for (const chart of view.charts) chart.draw();
  }

  function refresh() {
    for (const chart of view.charts) chart.set(spec(chart.kind));
    for (const chart of view.charts) chart.refresh();
  }

  function charts() {
    view.charts.forEach((chart) => chart.close());
    const specs = CHARTS.map((kind) => [kind, spec(kind)]).filter(([, one]) => one.lines.some((l) => some(l.ys)));
    view.charts = specs.map(([kind, one]) => Object.assign(new Chart(view, one), { kind }));
    if (!view.charts.length) return soft(t("no steps"));
    const hint = matchMedia("(hover: none)").matches ? t("touch") : t("hint");
    return element(
      "div",
      {},
      toolbar(),
      element("div", { className: "charts" }, ...view.charts.map((chart) => chart.node)),
      soft(hint),
    );
  }

  function languageButton() {
    const button = element("button", { type: "button", id: "language" }, language === "en" ? "中文" : "English");
    button.addEventListener("click", () => {
      language = language === "en" ? "zh" : "en";
      render();
    });
    return button;
  }

  function render() {
    document.documentElement.lang = language;
    const corner = element(
      "div",
      { id: "corner" },
      ...(PAGE.live
        ? [element("span", { id: "live", className: lost ? "lost" : "" }, lost ? t("lost") : `● ${t("live")}`)]
        : []),
      languageButton(),
    );
    document.getElementById("corner")?.remove();
    document.querySelector("header").append(corner);
    main.replaceChildren(
      ...section("overview", overview()),
      ...section("curves", charts()),
      ...section("samples", samples()),
      ...section("findings", findings()),
      ...section("differs", differs()),
      ...section("configuration", configuration()),
    );
    view.charts.forEach((chart) => chart.draw());
  }

  /* A served page asks for what is new. */

  const shape = () =>
    JSON.stringify(
      PAGE.runs.map((run) => [CHARTS.map((kind) => spec(kind).lines.some((l) => some(l.ys))), run.samples.length]),
    );

  function update(news) {
    const old = shape();
    PAGE.runs = PAGE.runs.map((run, i) => (news[i].whole ? { ...run, ...news[i] } : take(run, news[i])));
    if (shape() !== old) return render();
    replace("overview", overview());
    replace("findings", findings());
    refresh();
  }

  function replace(name, content) {
    document.getElementById(name).lastChild.replaceWith(content);
  }

  async function poll() {
    try {
      const since = PAGE.runs.map((run) => `${run.generation}.${run.number}`).join("-");
      const response = await fetch(`/news?since=${since}`, { cache: "no-store" });
      if (!response.ok) throw new Error(response.statusText);
      const news = await response.json();
      const changed = lost || news.some((one) => one.train !== undefined);
      if (lost) {
        lost = false;
        render();
      }
      if (changed) update(news);
      else {
        PAGE.runs.forEach((run, i) => (run.state = news[i].state));
        replace("overview", overview());
      }
    } catch (error) {
      if (!lost) {
        lost = true;
        render();
      }
    }
    setTimeout(poll, EVERY);
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw());
  render();
  if (PAGE.live) setTimeout(poll, EVERY);
})();
