/* Where answers come from: a server (here), or the page itself (page_source.js); the rest does not know which. */
"use strict";

/** Answers by key, the least recently used forgotten first. */
class Kept {
  constructor(limit) {
    this.limit = limit;
    this.found = new Map();
  }

  get(key) {
    const value = this.found.get(key);
    if (value !== undefined) {
      this.found.delete(key);
      this.found.set(key, value);
    }
    return value;
  }

  set(key, value) {
    this.found.set(key, value);
    if (this.found.size > this.limit) this.found.delete(this.found.keys().next().value);
  }
}

const QUICK = ["row", "local"]; // answers that need not come one by one

/** The server of `sightline explore`, by addresses relative to the page. */
class HttpSource {
  live = true; // images can be opened, panels added, pages made
  kept = new Kept(600);
  images = new Kept(8);

  async fetch(address, options = {}) {
    let answer;
    try {
      answer = await fetch(address, options);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("no answer from the server; is sightline explore still running?");
    }
    if (answer.ok) return answer;
    const told = await answer.json().catch(() => ({}));
    const error = new Error(typeof told.error === "string" ? told.error : `the server answered ${answer.status}`);
    throw Object.assign(error, { status: answer.status });
  }

  async json(address, options) {
    return (await this.fetch(address, options)).json();
  }

  post(address, body, signal) {
    return this.json(address, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
      signal,
    });
  }

  options() {
    return this.json("api/options");
  }

  upload(file) {
    return this.json(`api/images?${new URLSearchParams({ name: file.name || "image" })}`, {
      method: "POST",
      body: file,
    });
  }

  /** The image as the model sees it, asked for once by all panels. */
  image(id, size) {
    const address = `api/images/${encodeURIComponent(id)}?size=${size.join("x")}`;
    const found =
      this.images.get(address) ??
      this.fetch(address)
        .then((answer) => answer.blob())
        .then(createImageBitmap);
    this.images.set(address, found);
    found.catch(() => this.images.found.delete(address));
    return found;
  }

  panel(spec, signal) {
    return this.post("api/panels", spec, signal);
  }

  /** row, local, rollout or confusion of a panel; `wanted` has block, query and, for confusion, head. */
  async ask(kind, panel, wanted, signal) {
    const key = JSON.stringify([kind, panel.id, wanted]);
    const known = this.kept.get(key);
    if (known) return known;
    const path = `${encodeURIComponent(panel.id)}/${kind}?${new URLSearchParams(wanted)}`,
      answer = QUICK.includes(kind) ? await this.together(path, signal) : await this.json(`api/panels/${path}`, { signal });
    const found = kind === "confusion" ? answer : Heatmap.unpack(answer);
    this.kept.set(key, found);
    return found;
  }

  /** Quick answers that are asked for at the same time, by all panels, come in one. */
  together(path, signal) {
    if (!this.batch) {
      this.batch = [];
      queueMicrotask(() => this.send());
    }
    return new Promise((done, fail) => this.batch.push({ path, signal, done, fail }));
  }

  async send() {
    const batch = this.batch,
      control = new AbortController();
    this.batch = null;
    for (const { signal, fail } of batch)
      signal?.addEventListener("abort", () => {
        fail(signal.reason);
        if (batch.every((each) => each.signal?.aborted)) control.abort();
      });
    try {
      const paths = new URLSearchParams(batch.map(({ path }) => ["ask", path])),
        answers = await this.json(`api/together?${paths}`, { signal: control.signal });
      batch.forEach(({ done, fail }, i) =>
        answers[i].error ? fail(Object.assign(new Error(answers[i].error), answers[i])) : done(answers[i]),
      );
    } catch (error) {
      for (const { fail } of batch) fail(error);
    }
  }

  known(kind, panel, wanted) {
    return this.kept.get(JSON.stringify([kind, panel.id, wanted]));
  }

  /** The view as a file that needs no server. */
  async page(panels, start) {
    const wanted = new URLSearchParams({ panels: panels.map((panel) => panel.id), start: JSON.stringify(start) });
    return (await this.fetch(`api/page?${wanted}`)).blob();
  }
}
