/* What a panel shows: map, scale, value under the pointer, heads, predictions. */
"use strict";
const percent = (p) => (p >= 0.0995 ? `${Math.round(100 * p)} %` : `${(100 * p).toFixed(1)} %`);

const CONFUSION =
  "Patches with the same row as the query; and the share of such pairs among all pairs of clearly different queries.";

class DrawnPanel extends Panel {
  drawn = {};

  /** Whether any of the values that a part is drawn from has changed since it was asked last. */
  changed(part, ...values) {
    const before = this.drawn[part];
    this.drawn[part] = values;
    return !before || values.some((value, i) => value !== before[i]);
  }

  /** Least and most weight of a map, zero included. */
  span(map) {
    const { low, high } = Heatmap.range(map);
    return { low: Math.min(0, low), high: Math.max(0, high) };
  }

  /** The weight that every key would have if attention were even; 1 if there is no such weight. */
  get even() {
    const prefix = this.answer.prefix?.[0]?.length ?? 0;
    return this.app.state.view === "local" ? 1 : 1 / (this.answer.grid[0] * this.answer.grid[1] + prefix);
  }

  /** The end of the scale of this panel, as a multiple of even attention. */
  get own() {
    const map = this.map;
    if (!map) return 0;
    const { low, high } = this.span(map);
    return Math.max(-low, high) / this.even;
  }

  /** The end of the scale in weights. */
  get end() {
    return (this.app.state.scale.startsWith("same") ? this.app.shared : this.own) * this.even;
  }

  /** Draw the photograph with the map on a canvas. */
  paintOn(canvas, dots) {
    const { state, pointer } = this.app,
      map = this.map,
      confusion = state.view === "confusion";
    const own = this.info.blocks[this.index].grid,
      place = (state.view === "rollout" && this.info.rollout?.grid) || own;
    Heatmap.paint(canvas, {
      photo: this.photo,
      dimmed: this.dimmed,
      strength: state.photo / 100,
      map: confusion ? null : map,
      grid: confusion ? (this.same?.grid ?? place) : this.answer?.grid,
      end: map && this.end,
      root: this.app.state.scale.endsWith("root"),
      lit: confusion ? this.others : null,
      query: state.query === "class" ? null : this.patch(state.query, place),
      pointer: pointer && state.pinned && this.answer ? this.patch(pointer, this.answer.grid) : null,
      dots,
    });
  }

  draw() {
    if (!this.info || !this.photo) return;
    const map = this.map;
    this.paintOn(this.canvas, window.devicePixelRatio || 1);
    this.root.ariaBusy = String(Boolean(this.running || this.waiting));
    this.drawScale(map);
    const { head, view, scale } = this.app.state;
    if (this.changed("heads", this.answer, head, view, scale.endsWith("root"))) this.drawHeads();
    if (this.changed("guesses", this.info, this.index, view === "rollout")) this.drawGuesses();
    this.part(".value").textContent = this.value(map);
    this.part(".value").title = this.app.state.view === "confusion" ? CONFUSION : "";
    this.part(".facts").textContent = this.facts();
    const note = (this.info.note ?? "").replace(`${this.info.title}: `, ""); // its title stands above
    this.part(".note").textContent = this.part(".note").title = note;
    this.part(".note").hidden = !this.app.panels.some((panel) => panel.info?.note); // the same height everywhere
    this.canvas.setAttribute("aria-label", `${this.info.title}: ${this.summary(map)}`);
  }

  /** The patches that get the same attention as the query, without it. */
  get others() {
    const { query } = this.app.state;
    if (!this.same || query === "class") return [];
    const own = this.patch(query, this.same.grid).index;
    return this.same.same.filter((index) => index !== own);
  }

  drawScale(map) {
    const ticks = this.part(".ticks"),
      shown = map && this.app.state.view !== "confusion";
    this.part(".scale").classList.toggle("blank", !shown);
    if (!shown) return ticks.replaceChildren();
    const { low, high } = this.span(map),
      found = this.ticks(map);
    const top = high > low ? high : low + 1;
    Heatmap.legend(
      this.scaleCanvas,
      low,
      top,
      this.end,
      this.app.state.scale.endsWith("root"),
      window.devicePixelRatio || 1,
    );
    while (ticks.children.length > found.length) ticks.lastElementChild.remove();
    while (ticks.children.length < found.length) ticks.append(document.createElement("span"));
    found.forEach(({ text, where }, i) => {
      const tick = ticks.children[i];
      tick.textContent = text;
      tick.className = where === 0 ? "first" : where === 1 ? "last" : "";
      tick.style.left = `${100 * where}%`;
    });
    this.scaleCanvas.title =
      this.app.state.view === "local"
        ? "weights of the local residual"
        : `multiples of even attention, ${Heatmap.digits(this.even)}`;
  }

  /** The numbers at the scale: [{text, where from 0 to 1}]. */
  ticks(map) {
    const { low, high } = this.span(map),
      zero = high > low ? -low / (high - low) : 0,
      unit = this.app.state.view === "local" ? "" : " ×";
    const text = (value) => (value === 0 ? "0" : Heatmap.digits(value / this.even) + unit);
    const middle = low < 0 && zero > 0.15 && zero < 0.85 ? [{ text: "0", where: zero }] : [];
    return [{ text: text(low), where: 0 }, ...middle, { text: text(high), where: 1 }];
  }

  get mechanism() {
    return this.info.blocks[this.index].mechanism;
  }

  /** The number under the pointer, or of the query itself. */
  value(map) {
    const { state, pointer } = this.app;
    if (!map) return "\u00a0";
    if (state.view === "confusion") return this.confused();
    const place = pointer ?? (state.query === "class" ? null : state.query);
    const ends = `Σ ${Heatmap.digits(this.sum)}`;
    if (!place) return ends;
    const { grid, index } = this.patch(place, this.answer.grid),
      weight = map[index];
    const key = `${Math.floor(index / grid[1])},${index % grid[1]}`;
    if (state.view === "local") return `patch ${key}: ${Heatmap.digits(weight)} · ${ends}`;
    const least = this.ofHead(this.answer.scale) / 2, // smaller weights are rounded to zero
      text = weight === 0 ? `below ${Heatmap.digits(least)}` : Heatmap.digits(weight);
    return `patch ${key}: ${text} = ${Heatmap.digits((weight || least) / this.even)} × even · ${ends}`;
  }

  get sum() {
    return this.ofHead(this.answer.sum);
  }

  /** The number of the chosen head, or the mean. */
  ofHead(numbers) {
    const { head } = this.app.state;
    if (head !== "mean" && head < numbers.length) return numbers[head];
    return numbers.reduce((a, b) => a + b, 0) / numbers.length;
  }

  confused() {
    if (!this.same) return "\u00a0";
    const count = this.others.length,
      all = this.same.grid[0] * this.same.grid[1] - 1;
    const share = this.same.share === null ? "" : ` · ${percent(this.same.share)} of pairs`;
    return `${count} of ${all} patches get the same attention${share}`;
  }

  summary(map) {
    const { state } = this.app,
      block = this.info.blocks[this.index];
    const head =
      state.view === "rollout" ? "" : `, ${this.head(block) === "mean" ? "mean of heads" : `head ${state.head}`}`;
    const query = state.query === "class" ? "class token" : `patch ${this.patch(state.query, block.grid).index}`;
    return `${state.view} of ${query}, ${block.name}${head}. ${this.value(map)}`;
  }

  drawHeads() {
    const box = this.part(".heads"),
      { state } = this.app,
      answer = this.answer,
      count = answer ? Math.min(answer.heads, THUMBNAILS) : 0;
    box.title = answer && answer.heads > count ? `${count} of ${answer.heads} heads` : "";
    const names = answer && state.view !== "rollout" ? ["mean", ...Array(count).keys()] : [];
    if (box.children.length !== names.length) {
      box.replaceChildren(
        ...names.map((name) => {
          const button = document.createElement("button"),
            canvas = document.createElement("canvas"),
            label = document.createElement("span");
          Object.assign(button, { type: "button", className: "head" });
          button.setAttribute("aria-label", name === "mean" ? "mean of all heads" : `head ${name}`);
          label.textContent = name;
          button.append(canvas, label);
          button.addEventListener("click", () => this.app.set({ head: name }));
          return button;
        }),
      );
    }
    const chosen = answer && state.head !== "mean" && state.head < answer.heads ? state.head : "mean";
    names.forEach((name, i) => {
      const button = box.children[i],
        canvas = button.firstElementChild,
        map = Heatmap.weightsOf(answer, name),
        { low, high } = this.span(map);
      const [rows, columns] = answer.grid,
        most = Math.max(rows, columns);
      const size = [Math.round((56 * rows) / most), Math.round((56 * columns) / most)];
      if (canvas.height !== size[0] || canvas.width !== size[1]) [canvas.height, canvas.width] = size;
      Heatmap.thumbnail(canvas, map, answer.grid, Math.max(-low, high), state.scale.endsWith("root"));
      button.setAttribute("aria-pressed", String(name === chosen));
    });
  }

  /** The classifier after every block: a bar is the probability of its first guess, filled if that is the final one. */
  drawGuesses() {
    const { top, by_block: blocks } = this.info,
      bars = this.part(".bars"),
      list = this.part(".top"),
      final = top?.[0]?.label;
    if (bars.dataset.of !== this.info.id) {
      bars.dataset.of = this.info.id;
      bars.replaceChildren(
        ...blocks.map((guess, i) => {
          const bar = document.createElement("button"),
            level = document.createElement("i");
          Object.assign(bar, {
            type: "button",
            tabIndex: -1,
            title: guess ? `block ${i}: ${guess[0].label}, ${percent(guess[0].p)}` : `block ${i}`,
          });
          bar.setAttribute("aria-label", bar.title);
          level.style.height = guess ? `${Math.max(4, 100 * guess[0].p)}%` : "0";
          level.className = guess && guess[0].label === final ? "final" : "";
          bar.append(level);
          bar.addEventListener("click", () => this.app.set({ block: Math.ceil((i * this.app.depth) / blocks.length) }));
          return bar;
        }),
      );
    }
    [...bars.children].forEach((bar, i) => bar.classList.toggle("now", i === this.index));
    const last = this.app.state.view === "rollout" || this.index === blocks.length - 1;
    const guesses = ((last ? top : (blocks[this.index] ?? top)) ?? []).slice(0, 3);
    list.replaceChildren(
      ...guesses.map(({ label, p }) => {
        const item = document.createElement("li"),
          name = document.createElement("span"),
          number = document.createElement("b");
        name.textContent = name.title = label;
        number.textContent = percent(p);
        item.classList.toggle("final", label === final);
        item.append(name, number);
        return item;
      }),
    );
  }

  facts() {
    const block = this.info.blocks[this.index],
      { view } = this.app.state;
    const [rows, columns] = view === "rollout" && this.info.rollout ? this.info.rollout.grid : block.grid;
    const name =
      view === "rollout" && this.info.rollout
        ? `blocks ${this.info.rollout.from}–${this.info.rollout.to}`
        : block.name.replace(/\.attn$/, "");
    const classes = this.answer?.prefix?.[0]?.length ? ` · class token ${Heatmap.digits(this.classShare)}` : "";
    const row = this.answer?.ms ? ` · row ${Heatmap.digits(this.answer.ms)} ms` : "";
    const forward = ` · forward ${Heatmap.digits(this.info.forward_ms)} ms`;
    return `${name} · ${rows} × ${columns}${classes}${forward}${row} · ${block.mechanism}`; // the longest part last
  }

  /** The weight of the prefix tokens in the map on show. */
  get classShare() {
    return this.ofHead(this.answer.prefix.map((each) => each.reduce((a, b) => a + b, 0)));
  }
}
