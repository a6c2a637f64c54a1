/* The page: one state, up to three panels, controls, keyboard, address. */
"use strict";
const byId = (id) => document.getElementById(id);
const STEP = 650; // ms between blocks when playing
const SOON = 80; // ms after which a query is shown although its answer is not there

class App {
  constructor(source) {
    Object.assign(this, { source, panels: [], uploads: new Set(), depth: 1, shared: 0, pointer: null, playing: null });
    this.message = byId("message");
  }

  async start() {
    this.options = await this.source.options();
    this.state = State.merge(State.initial(this.options), State.read(location.hash), this.options);
    Controls.listen(this);
    Keyboard.listen(this);
    // Not location.hash: the address may have been saved since.
    addEventListener("hashchange", (event) => this.set(State.read(new URL(event.newURL).hash)));
    await this.update();
  }

  /** Change the state, and show it. */
  set(change) {
    const before = this.state;
    this.state = State.merge(before, change, this.options);
    this.limit();
    clearTimeout(this.saving);
    this.saving = setTimeout(() => this.save(), 200);
    const same = ["image", "size", "panels"].every(
      (key) => JSON.stringify(before[key]) === JSON.stringify(this.state[key]),
    );
    if (!same) return this.update();
    Controls.show(this);
    for (const panel of this.panels) panel.refresh();
    // Answers come with the next frame or two: until then, drawing the old ones would only delay them.
    if (!this.panels.some((panel) => panel.running)) this.drawAll();
    else this.soon ??= setTimeout(() => this.drawAll(), SOON);
    return undefined;
  }

  get address() {
    const state = this.uploads.has(this.state.image) ? { ...this.state, image: "" } : this.state;
    return `#${State.write(state)}`;
  }

  save() {
    clearTimeout(this.saving);
    if (location.hash !== this.address) history.replaceState(null, "", this.address);
  }

  /** Load what is not loaded. */
  async update() {
    const { panels, state } = this;
    while (panels.length > state.panels.length) panels.pop().close();
    while (panels.length < state.panels.length) {
      panels.push(new DrawnPanel(this, panels.length));
      byId("panels").append(panels.at(-1).root);
    }
    byId("panels").append(this.adder());
    byId("panels").dataset.count = panels.length;
    Controls.show(this);
    await Promise.all(panels.map((panel) => panel.load()));
  }

  adder() {
    this.plus ??= Object.assign(document.createElement("button"), {
      id: "add",
      type: "button",
      textContent: "+",
      title: "Add a panel",
    });
    this.plus.setAttribute("aria-label", "Add a panel");
    this.plus.hidden = !this.source.live || this.state.panels.length >= this.options.max_panels;
    this.plus.onclick = () => {
      const last = this.state.panels.at(-1),
        used = this.state.panels.map((each) => each.attention);
      const model = this.options.models.find((each) => each.id === last.model);
      const next = (model?.attentions ?? this.options.attentions).find((name) => !used.includes(name));
      this.set({ panels: [...this.state.panels, { model: last.model, attention: next ?? null }] });
    };
    return this.plus;
  }

  remove(number) {
    this.panels.splice(number, 1)[0].close();
    this.panels.forEach((panel, i) => (panel.number = i));
    this.set({ panels: this.state.panels.filter((_, i) => i !== number) });
  }

  /** Keep to the blocks there are: the middle one to start with, and the last once all panels are known. */
  limit() {
    if (this.state.block < 0 && this.panels.some((panel) => panel.info))
      this.state.block = Math.floor((this.depth - 1) / 2);
    if (this.panels.some((panel) => panel.root.classList.contains("busy"))) return;
    if (this.state.block >= this.depth) this.state.block = this.depth - 1;
  }

  /** A panel has arrived, or failed. */
  loaded() {
    const depths = this.panels.filter((panel) => panel.info).map((panel) => panel.info.blocks.length);
    this.depth = Math.max(1, ...depths);
    this.limit();
    Controls.show(this);
    this.save();
    for (const panel of this.panels) {
      panel.fit();
      panel.refresh();
    }
  }

  /** Draw all panels once, before the next frame. */
  drawAll() {
    this.frame ??= requestAnimationFrame(() => {
      clearTimeout(this.soon);
      this.frame = this.soon = null;
      const ready = this.panels.filter((panel) => panel.info);
      this.shared = Math.max(0, ...ready.map((panel) => panel.own));
      for (const panel of ready) panel.draw();
      document.body.dataset.drawn = String(Number(document.body.dataset.drawn ?? 0) + 1);
    });
  }

  point(place) {
    this.pointer = place;
    this.drawAll();
  }

  /** A click: hold the query here, or let it go if it is held here. */
  pin(query) {
    const grid = this.grid,
      index = (place) => place[0] * grid[0] >= 0 && [0, 1].map((i) => Math.floor(place[i] * grid[i])).join();
    const again = this.state.pinned && this.state.query !== "class" && index(this.state.query) === index(query);
    this.set({ query, pinned: !again });
  }

  /** The grid that arrows move on. */
  get grid() {
    const panel = this.panels.find((each) => each.info);
    if (!panel) return [14, 14];
    return (this.state.view === "rollout" && panel.info.rollout?.grid) || panel.info.blocks[panel.index].grid;
  }

  /** Move the query by patches. */
  move(down, across) {
    const grid = this.grid,
      from = this.state.query === "class" ? [0.5, 0.5] : this.state.query,
      by = [down, across];
    const query = [0, 1].map(
      (i) => (Math.min(grid[i] - 1, Math.max(0, Math.floor(from[i] * grid[i]) + by[i])) + 0.5) / grid[i],
    );
    this.pointer = null;
    this.set({ query, pinned: true });
    const panel = this.panels.find((each) => each.info);
    byId("said").textContent = panel ? panel.summary(panel.map) : "";
  }

  play(on = !this.playing) {
    clearTimeout(this.playing);
    this.playing = on ? setTimeout(() => this.next(), STEP) : null;
    byId("play").setAttribute("aria-pressed", String(on));
  }

  next() {
    if (this.panels.every((panel) => !panel.running)) this.set({ block: (this.state.block + 1) % this.depth });
    this.play(true);
  }

  caption() {
    const { state } = this,
      image = this.options.samples.find((each) => each.id === state.image);
    const head =
      state.view === "rollout"
        ? ""
        : `, ${state.head === "mean" ? "mean of heads" : `head ${state.head}`}, block ${state.block}`;
    const query =
      state.query === "class" ? "class token" : `query at ${state.query.map((part) => part.toFixed(2)).join(", ")}`;
    const source = `${image?.title ?? state.image}, ${state.size.join(" × ")} pixels`;
    return `${state.view}${head}, ${query} · ${source} · sightline ${this.options.version ?? ""}`;
  }

  /** One line on the page; the page stays as it is. */
  say(text, good = false) {
    this.message.firstElementChild.textContent = text;
    this.message.classList.toggle("good", good);
    this.message.hidden = !text;
    clearTimeout(this.silence);
    if (good) this.silence = setTimeout(() => (this.message.hidden = true), 3000);
  }

  async attempt(action) {
    try {
      await action();
    } catch (error) {
      this.say(error.message);
    }
  }

  open(file) {
    return this.attempt(async () => {
      if (!file) throw new Error("drop an image file, or choose one with Open");
      this.say("");
      const image = await this.source.upload(file);
      this.uploads.add(image.id);
      this.options.samples = [...this.options.samples.filter((each) => each.id !== image.id), image];
      this.set({ image: image.id });
    });
  }
}
