/* Menus, buttons, dropping of files, and the keyboard. */
"use strict";
const Controls = {
  listen(app) {
    const on = (id, event, action) => byId(id).addEventListener(event, action);
    on("image", "change", (event) => app.set({ image: event.target.value }));
    on("open", "click", () => byId("file").click());
    on("file", "change", (event) => event.target.files[0] && app.open(event.target.files[0]));
    on("size", "change", (event) => Controls.size(app, event.target.value));
    on("other", "change", (event) => Controls.size(app, event.target.value));
    on("block", "input", (event) => app.set({ block: Number(event.target.value) }));
    on("photo", "input", (event) => app.set({ photo: Number(event.target.value) }));
    on("scale", "change", (event) => app.set({ scale: event.target.value }));
    on("score", "change", (event) => app.set({ score: Number(event.target.value) }));
    on("views", "change", (event) => app.set({ view: event.target.value }));
    on("class", "click", () => app.set({ query: app.state.query === "class" ? [0.5, 0.5] : "class" }));
    on("play", "click", () => app.play());
    on("share", "click", () => app.attempt(() => Controls.share(app)));
    on("png", "click", () => Picture.draw(app).toBlob((blob) => Picture.save(blob, "sightline-explore.png")));
    on("page", "click", () =>
      app.attempt(async () => {
        app.say("making the page …");
        const { image, size, panels, ...start } = app.state;
        Picture.save(
          await app.source.page(app.panels.map((panel) => panel.info).filter(Boolean), start),
          "sightline-explore.html",
        );
        app.say("");
      }),
    );
    on("theme", "click", Controls.theme);
    app.message.querySelector("button").addEventListener("click", () => app.say(""));
    if (app.source.live) Controls.dropping(app);
    // A control that was used with the pointer gives the keys back to the page.
    let pointed = false;
    addEventListener("pointerdown", () => (pointed = true), true);
    addEventListener("keydown", () => (pointed = false), true);
    for (const event of ["click", "change"])
      document.addEventListener(
        event,
        ({ target }) => pointed && target.closest("button, select, input:not([type=text])")?.blur(),
      );
    for (const id of ["open", "page"]) byId(id).hidden = !app.source.live;
    for (const id of ["image", "size"]) byId(id).disabled = !app.source.live;
  },

  theme() {
    const now =
      document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    const name = now === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = name;
    try {
      localStorage.setItem("sightline-theme", name);
    } catch {
      return; // a page that may not keep anything
    }
  },

  dropping(app) {
    const over = (on) => document.body.classList.toggle("dropping", on);
    addEventListener("dragover", (event) => (event.preventDefault(), over(true)));
    addEventListener("dragleave", (event) => event.relatedTarget || over(false));
    addEventListener("drop", (event) => {
      event.preventDefault();
      over(false);
      app.open(event.dataTransfer.files[0]);
    });
    addEventListener("paste", (event) => event.clipboardData?.files[0] && app.open(event.clipboardData.files[0]));
  },

  /** A chosen size: 224x336, or "other" for one that is typed. */
  size(app, text) {
    byId("other").hidden = text !== "other";
    if (text === "other") return byId("other").focus();
    const size = /^\s*(\d{2,4})\s*[x×*, ]\s*(\d{2,4})\s*$/.exec(text) ?? /^\s*((\d{2,4}))\s*$/.exec(text);
    if (!size) return app.say(`size: expected height x width, such as 512x768; got ${text}`);
    app.say("");
    return app.set({ size: [Number(size[1]), Number(size[2])] });
  },

  async share(app) {
    app.save();
    const left = app.uploads.has(app.state.image) ? "; the image that you opened is not in it" : "";
    try {
      await navigator.clipboard.writeText(location.href);
      app.say(`address copied${left}`, true);
    } catch {
      app.say(`copy the address of this page${left}`, true);
    }
  },

  /** Sizes to choose from: squares, and the shape of the image. */
  sizes(app) {
    const { sizes, samples } = app.options,
      image = samples.find((each) => each.id === app.state.image),
      entries = sizes.map((side) => [side, side]);
    if (image?.width && image.width !== image.height) {
      const ratio = image.width / image.height,
        most = Math.max(...sizes),
        even = (side) => Math.max(32, Math.round(side / 32) * 32);
      for (const side of sizes) {
        const size = ratio > 1 ? [side, even(side * ratio)] : [even(side / ratio), side];
        if (Math.max(...size) <= most) entries.push(size);
      }
    }
    if (!entries.some((size) => String(size) === String(app.state.size))) entries.push(app.state.size);
    return entries.map((size) => [size.join("x"), size.join(" × ")]);
  },

  /** Bring all controls up to date. */
  show(app) {
    const { state, options, panels } = app,
      first = panels.find((panel) => panel.info);
    fill(
      byId("image"),
      options.samples.map((each) => [each.id, each.title]),
      state.image,
    );
    fill(
      byId("size"),
      [...Controls.sizes(app), ...(app.source.live ? [["other", "other …"]] : [])],
      state.size.join("x"),
    );
    byId("block").max = app.depth - 1;
    byId("block").value = state.block;
    byId("block").disabled = state.view === "rollout";
    byId("block-name").textContent = `${Math.max(0, state.block)} / ${app.depth - 1}`;
    byId("photo").value = state.photo;
    byId("scale").value = state.scale;
    fill(
      byId("score"),
      (options.scores ?? []).map((score) => [score, score]),
      state.score,
    );
    byId("scale").parentElement.hidden = state.view === "confusion";
    byId("score").parentElement.hidden = state.view !== "confusion";
    document.querySelector(`input[name=view][value=${state.view}]`).checked = true;
    byId("class").setAttribute("aria-pressed", String(state.query === "class"));
    byId("class").hidden = !first?.info.blocks.some((block) => block.prefix);
    document.body.classList.toggle("pinned", state.pinned);
  },
};

const Keyboard = {
  listen(app) {
    const arrows = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const views = { a: "attention", l: "local", r: "rollout", f: "confusion" };
    const block = (by) => app.set({ block: Math.min(app.depth - 1, Math.max(0, app.state.block + by)) });
    const keys = {
      "[": () => block(-1),
      "]": () => block(1),
      PageUp: () => block(-1),
      PageDown: () => block(1),
      " ": () => app.play(),
      m: () => app.set({ head: "mean" }),
      c: () => byId("class").hidden || byId("class").click(),
      Escape: () => app.set({ pinned: false }),
    };
    document.addEventListener("keydown", (event) => {
      const key = event.key.length === 1 ? event.key.toLowerCase() : event.key,
        inside = event.target.closest("input, select, textarea, button");
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (
        inside &&
        (inside.matches("select, input[type=text]") || key === " " || (arrows[key] && inside.matches("input")))
      )
        return;
      if (arrows[key]) app.move(...arrows[key]);
      else if (/^\d$/.test(key)) app.set({ head: Number(key) });
      else if (views[key]) app.set({ view: views[key] });
      else if (keys[key]) keys[key]();
      else return;
      event.preventDefault();
    });
  },
};
