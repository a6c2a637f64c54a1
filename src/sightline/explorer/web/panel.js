/* One panel: a model with an attention mechanism, its map of the query, its heads and its predictions. */
"use strict";
const THUMBNAILS = 64; // heads that are drawn
const PATIENCE = 400; // ms after which an answer for an older query is no longer waited for

class Panel {
  /** `app` has state, source, options, and is told of changes by set(). */
  constructor(app, number) {
    this.app = app;
    this.number = number;
    this.took = {}; // seconds, by what and size
    this.root = document.getElementById("panel").content.firstElementChild.cloneNode(true);
    this.part = (name) => this.root.querySelector(name);
    this.canvas = this.part(".stage canvas");
    this.scaleCanvas = this.part(".scale canvas");
    this.info = this.photo = this.dimmed = this.answer = this.same = this.running = null;
    for (const name of ["model", "attention"]) this.part(`.${name}`).addEventListener("change", () => this.choose());
    this.part(".remove").addEventListener("click", () => app.remove(this.number));
    this.listen();
    this.watch = new ResizeObserver(() => this.fit());
    for (const box of [this.part(".stage"), this.scaleCanvas]) this.watch.observe(box);
  }

  get spec() {
    return this.app.state.panels[this.number];
  }

  close() {
    this.loading?.abort();
    this.stop();
    this.watch.disconnect();
    this.root.remove();
  }

  /** Leave the request that is under way, and the one that waits. */
  stop() {
    this.running?.abort.abort();
    this.running = this.waiting = null;
  }

  choose() {
    const attention = this.part(".attention").value;
    const panels = [...this.app.state.panels];
    panels[this.number] = { model: this.part(".model").value, attention: attention === "" ? null : attention };
    this.app.set({ panels });
  }

  listen() {
    const at = (event) => {
      const box = this.canvas.getBoundingClientRect(),
        inside = (part) => Math.min(0.9999, Math.max(0, part));
      return [inside((event.clientY - box.top) / box.height), inside((event.clientX - box.left) / box.width)];
    };
    this.canvas.addEventListener("pointermove", (event) => {
      const place = at(event),
        { pinned, query } = this.app.state;
      if (pinned || query === "class") return this.app.point(place);
      this.app.pointer = place;
      return this.app.set({ query: place });
    });
    this.canvas.addEventListener("pointerleave", () => this.app.point(null));
    this.canvas.addEventListener("click", (event) => this.app.pin(at(event)));
  }

  /** Ask for the panel again: another image, size, model or mechanism. */
  async load() {
    const { app, spec } = this,
      { image, size } = app.state,
      key = JSON.stringify([image, size, spec]);
    this.menus();
    if (key === this.key) return;
    this.key = key;
    this.loading?.abort();
    this.stop();
    const control = (this.loading = new AbortController());
    this.root.classList.add("busy");
    this.notice(this.info ? "" : "computing …");
    const done = this.lasting("forward pass");
    try {
      const [info, photo] = await Promise.all([
        app.source.panel({ image, ...spec, size }, control.signal),
        app.source.image(image, size),
      ]);
      if (this.loading !== control) return;
      this.stop(); // what was asked about the panel before
      this.notice("");
      Object.assign(this, {
        info,
        photo,
        dimmed: Heatmap.dim(photo),
        answer: null,
        same: null,
        failed: false,
      });
    } catch (error) {
      if (error.name === "AbortError" || this.loading !== control) return;
      Object.assign(this, { info: null, answer: null, same: null, failed: true, key: null });
      this.canvas.width = 1;
      this.notice(error.message);
      app.say(error.message);
    } finally {
      done(this.info !== null);
    }
    this.root.classList.remove("busy");
    app.loaded();
  }

  menus() {
    const { models, attentions } = this.app.options,
      spec = this.spec;
    const model = models.find((each) => each.id === spec.model);
    fill(
      this.part(".model"),
      models.map((each) => [each.id, each.title]),
      spec.model,
    );
    fill(
      this.part(".attention"),
      [["", "as it is"], ...(model?.attentions ?? attentions).map((name) => [name, name])],
      spec.attention ?? "",
    );
    this.part(".remove").hidden = !this.app.source.live || this.app.state.panels.length < 2;
    for (const name of ["model", "attention"]) this.part(`.${name}`).disabled = !this.app.source.live;
    this.root.setAttribute("aria-label", `Panel ${this.number + 1}`);
  }

  /** Say on the panel how long something takes, if it is long; returns what ends that. */
  lasting(what) {
    const start = performance.now(),
      seconds = () => Math.round((performance.now() - start) / 1000),
      key = `${what} ${this.app.state.size}`,
      before = this.took[key] > 1 ? ` of about ${this.took[key]}` : "";
    const timer = setInterval(() => this.notice(`${what}: ${seconds()}${before} s …`), 1000);
    return (finished) => {
      clearInterval(timer);
      if (finished) this.took[key] = seconds();
    };
  }

  notice(text) {
    this.part(".notice").textContent = text;
    this.part(".notice").hidden = !text;
  }

  /** The block of this panel that belongs to the slider. */
  get index() {
    const depth = this.app.depth,
      blocks = this.info.blocks.length;
    return Math.min(blocks - 1, Math.floor((this.app.state.block * blocks) / depth));
  }

  /** A place in the image as {grid, index} on a grid. */
  patch(place, grid) {
    const [row, column] = [0, 1].map((i) => Math.min(grid[i] - 1, Math.floor(place[i] * grid[i])));
    return { grid, index: row * grid[1] + column };
  }

  /** What has to be known for the chosen view: [kind, what is wanted], or a line that says why there is nothing. */
  need() {
    const { view, query, head } = this.app.state,
      block = this.info.blocks[this.index];
    const of = (grid) => (query === "class" ? "class" : this.patch(query, grid).index);
    if (view === "rollout")
      return this.info.rollout
        ? [["rollout", { query: of(this.info.rollout.grid) }]]
        : "This model has no rollout: its keys lie on reduced maps.";
    if (!block.rows) return `${block.mechanism} has no matrix of weights`;
    if (query === "class" && !block.prefix) return "This block has no class token.";
    if (view === "local")
      return block.local
        ? [["local", { block: this.index, query: of(block.grid) }]]
        : `${block.mechanism} has no local residual`;
    const row = ["row", { block: this.index, query: of(block.grid) }];
    if (view === "attention") return [row];
    if (query === "class") return "Confusion compares patches: choose one.";
    return [
      row,
      ["confusion", { block: this.index, head: this.head(block), query: of(block.grid), score: this.app.state.score }],
    ];
  }

  head(block) {
    const { head } = this.app.state;
    return head === "mean" || head >= block.heads ? "mean" : head;
  }

  /** Show the query. One request is under way at a time; of those that come meanwhile only the newest is kept. */
  refresh() {
    if (!this.info) return;
    this.root.ariaBusy = "true"; // until it is drawn
    const need = this.need(),
      key = JSON.stringify(need);
    if (typeof need === "string") {
      this.notice(need);
      this.waiting = this.answer = this.same = null;
      return this.draw();
    }
    const known = need.map(([kind, wanted]) => this.app.source.known(kind, this.info, wanted));
    if (known.every(Boolean)) {
      this.waiting = null;
      return this.take(known);
    }
    if (this.running) {
      if (this.running.key === key) return void (this.waiting = null);
      this.waiting = need;
      const same = this.running.kind === need.at(-1)[0] && !QUICK.includes(this.running.kind); // the server goes on
      if (!same && performance.now() - this.running.since > PATIENCE) this.running.abort.abort();
      return undefined;
    }
    return this.run(need, key);
  }

  async run(need, key) {
    const abort = new AbortController(),
      kind = need.at(-1)[0],
      mine = (this.running = { key, kind, abort, since: performance.now() }),
      info = this.info,
      done = this.lasting(kind);
    let answers = null;
    try {
      answers = await Promise.all(need.map(([kind, wanted]) => this.app.source.ask(kind, info, wanted, abort.signal)));
    } catch (error) {
      if (error.status === 404) this.key = null; // forgotten by the server: the next change asks again
      if (error.name !== "AbortError" && this.running === mine) this.app.say(error.message);
    }
    done(answers !== null);
    if (this.running !== mine) return;
    this.running = null;
    if (answers && this.info === info) this.take(answers);
    else this.app.drawAll();
    if (this.key === null) await this.load();
    else if (this.waiting) {
      this.waiting = null;
      this.refresh();
    }
  }

  take([answer, same = null]) {
    Object.assign(this, { answer, same });
    this.notice("");
    this.app.drawAll();
  }

  /** The map on show, or null. */
  get map() {
    if (!this.answer) return null;
    const head = this.app.state.head,
      one = head !== "mean" && head < this.answer.heads ? head : "mean";
    if (this.shown?.answer !== this.answer || this.shown.head !== one)
      this.shown = { answer: this.answer, head: one, map: Heatmap.weightsOf(this.answer, one) };
    return this.shown.map;
  }

  /** The size of the canvas: as large as the stage allows, with the shape of the image. */
  fit() {
    const box = this.part(".stage").getBoundingClientRect(),
      [high, wide] = this.info?.pixels ?? [1, 1];
    if (!box.width || !box.height) return;
    this.part(".stage").style.setProperty("--shape", `${wide} / ${high}`);
    const factor = Math.min(box.width / wide, box.height / high),
      dots = window.devicePixelRatio || 1;
    Object.assign(this.canvas.style, {
      width: `${Math.floor(wide * factor)}px`,
      height: `${Math.floor(high * factor)}px`,
    });
    this.canvas.width = Math.round(wide * factor * dots);
    this.canvas.height = Math.round(high * factor * dots);
    const scale = this.scaleCanvas.getBoundingClientRect();
    this.scaleCanvas.width = Math.max(1, Math.round(scale.width * dots));
    this.scaleCanvas.height = Math.max(1, Math.round(scale.height * dots));
    this.draw();
  }
}

/** The options of a menu, [value, text] each; only texts, never markup. */
function fill(menu, entries, value) {
  const wanted = JSON.stringify(entries);
  if (menu.dataset.entries !== wanted) {
    menu.replaceChildren(...entries.map(([value, text]) => new Option(text, value)));
    menu.dataset.entries = wanted;
  }
  menu.value = value;
}
