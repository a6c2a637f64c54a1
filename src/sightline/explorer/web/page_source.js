/* The answers inside a page that needs no server; explorer/page.py has the layout. */
"use strict";
class PageSource {
  live = false; // what is here is all there is
  unpacked = new Map();
  kept = new Kept(600);

  constructor(data) {
    this.data = data;
  }

  async options() {
    return this.data.options;
  }

  async image() {
    const photo = new Image();
    photo.src = this.data.seen;
    await photo.decode();
    return photo;
  }

  async panel({ model, attention }) {
    const at = this.data.options.start.panels.findIndex((each) => each.model === model && each.attention === attention);
    if (at < 0) throw new Error("this page does not contain that model");
    return this.data.panels[at];
  }

  known(kind, panel, wanted) {
    return this.kept.get(JSON.stringify([kind, panel.id, wanted]));
  }

  async ask(kind, panel, wanted) {
    const { blocks, rollout } = panel.packed,
      block = kind === "rollout" ? null : blocks[wanted.block];
    const packed = { rollout, row: block?.rows, local: block?.local, confusion: block?.confusion?.[0] }[kind];
    if (!packed) throw new Error("this page does not contain that view");
    const answer =
      kind === "confusion"
        ? await this.confusion(packed, panel.blocks[wanted.block], wanted)
        : await this.row(packed, wanted);
    this.kept.set(JSON.stringify([kind, panel.id, wanted]), answer);
    return answer;
  }

  /** The bytes of a gzip file in base64, unpacked once. */
  bytes(text) {
    if (!this.unpacked.has(text)) {
      const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
      const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
      this.unpacked.set(text, new Response(stream).arrayBuffer());
    }
    return this.unpacked.get(text);
  }

  async row({ heads, grid, prefix, data, stats }, { query }) {
    const cells = grid[0] * grid[1],
      numbers = new Int8Array(await this.bytes(data)),
      facts = new Float32Array(await this.bytes(stats));
    const at = query === "class" ? numbers.length / (heads * cells) - 1 : query,
      wide = 4 + prefix;
    const fact = (head) => facts.subarray((at * heads + head) * wide, (at * heads + head + 1) * wide);
    const all = (read) => Array.from({ length: heads }, (_, head) => read(fact(head)));
    return {
      grid,
      heads,
      weights: numbers.subarray(at * heads * cells, (at + 1) * heads * cells),
      scale: all((each) => each[0]),
      min: all((each) => each[1]),
      max: all((each) => each[2]),
      sum: all((each) => each[3]),
      prefix: all((each) => [...each.subarray(4)]),
      ms: null,
    };
  }

  /** Patches that are confused with the query up to the chosen distance. */
  async confusion({ share, data }, { grid }, { head, query, score }) {
    const { scores } = this.data.options,
      level = scores.indexOf(score),
      found = new Uint8Array(await this.bytes(data));
    const places = grid[0] * grid[1],
      at = head === "mean" ? share.length - 1 : head,
      start = (at * places + query) * places;
    const same = [...Array(places).keys()].filter((other) => found[start + other] <= level);
    return { grid, same, share: share[at][level], thresholds: { score }, ms: null };
  }
}
