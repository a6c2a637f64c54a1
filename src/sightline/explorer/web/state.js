/* What is shown, and its address: everything after # in the address of the page. */
"use strict";
const VIEWS = ["attention", "local", "rollout", "confusion"];
const SCALES = ["own", "own-root", "same", "same-root"];

const State = {
  /** The state that the server or page starts with. */
  initial(options) {
    const model = options.models[0] ? options.models[0].id : "";
    const state = {
      image: options.samples[0] ? options.samples[0].id : "",
      size: [224, 224],
      panels: [{ model, attention: null }],
      block: -1,
      head: "mean",
      view: "attention",
      query: [0.5, 0.5],
      pinned: false,
      scale: "own",
      photo: 100,
      score: options.score ?? 0.1,
    };
    return State.merge(state, options.start || {}, options);
  },

  /** The state with those entries of `found` that make sense. */
  merge(state, found, options) {
    const next = { ...state },
      is = Number.isInteger;
    if (typeof found.image === "string" && found.image) next.image = found.image;
    if (Array.isArray(found.size) && found.size.length === 2 && found.size.every((side) => is(side) && side > 0))
      next.size = found.size;
    if (Array.isArray(found.panels) && found.panels.length) next.panels = found.panels.slice(0, options.max_panels);
    if (is(found.block)) next.block = found.block;
    if (found.head === "mean" || (is(found.head) && found.head >= 0)) next.head = found.head;
    if (VIEWS.includes(found.view)) next.view = found.view;
    const shares = Array.isArray(found.query) && found.query.length === 2;
    if (found.query === "class") next.query = "class";
    else if (shares && found.query.every((part) => part >= 0 && part <= 1)) next.query = found.query;
    if (typeof found.pinned === "boolean") next.pinned = found.pinned;
    if (SCALES.includes(found.scale)) next.scale = found.scale;
    if ((options.scores ?? []).includes(found.score)) next.score = found.score;
    if (is(found.photo) && found.photo >= 0 && found.photo <= 100) next.photo = found.photo;
    return next;
  },

  /** The state as text, e.g. image=cat&size=224x224&panels=tiny~inline,tiny~softmax&block=7. */
  write(state) {
    const name = ({ model, attention }) =>
      [model, ...(attention === null ? [] : [attention])].map(State.quote).join("~");
    const parts = {
      image: State.quote(state.image),
      size: state.size.join("x"),
      panels: state.panels.map(name).join(","),
      block: state.block,
      head: state.head,
      view: state.view,
      query: state.query === "class" ? "class" : state.query.map((part) => part.toFixed(4)).join(","),
      ...(state.view === "confusion" && { score: state.score }),
      ...(state.pinned && { pinned: 1 }),
      ...(state.scale !== "own" && { scale: state.scale }),
      ...(state.photo !== 100 && { photo: state.photo }),
    };
    return Object.entries(parts)
      .map(([key, value]) => `${key}=${value}`)
      .join("&");
  },

  quote: (text) => encodeURIComponent(text).replace(/~/g, "%7E"),

  /** What an address says; entries that cannot be read are left out. */
  read(text) {
    const found = {},
      number = (word) => (/^-?\d+$/.test(word) ? Number(word) : undefined);
    const readers = {
      image: decodeURIComponent,
      size: (text) => text.split("x").map(number),
      block: number,
      photo: number,
      view: String,
      scale: String,
      head: (word) => (word === "mean" ? word : number(word)),
      query: (word) => (word === "class" ? word : word.split(",").map(Number)),
      pinned: (word) => word === "1",
      score: Number,
      panels: (text) =>
        text.split(",").map((each) => {
          const [model, attention = null] = each.split("~").map(decodeURIComponent);
          return { model, attention };
        }),
    };
    for (const part of text.replace(/^#/, "").split("&")) {
      const at = part.indexOf("="),
        reader = readers[part.slice(0, at)];
      try {
        if (at > 0 && Object.hasOwn(readers, part.slice(0, at))) found[part.slice(0, at)] = reader(part.slice(at + 1));
      } catch {
        continue; // not an escape sequence
      }
    }
    return found;
  },
};
