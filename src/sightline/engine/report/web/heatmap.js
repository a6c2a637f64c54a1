/* Heat maps of signed weights on a photograph. Orange is positive, blue negative; negative patches are also hatched, so
   that the sign can be read without colour. Used by explore and by reports of runs: a plain script, global `Heatmap`. */
"use strict";
const Heatmap = (() => {
  const POSITIVE = [
    [0, 214, 78, 0],
    [0.45, 255, 140, 20],
    [1, 255, 236, 170],
  ]; // [share of the end, r, g, b]
  const NEGATIVE = [
    [0, 20, 74, 196],
    [0.45, 62, 146, 255],
    [1, 205, 232, 255],
  ];
  const HATCHED = 0.05; // share of the end from which a negative patch is hatched
  const DIM = 0.55,
    FLOOR = 8; // of the photograph under a map
  const STEPS = 1024, // of a ramp
    PLATE = [23, 24, 27]; // --plate of theme.css

  /** The colour of a share in [-1, 1] of the end of the scale: [r, g, b, opacity 0 to 255]. */
  function colour(share) {
    const size = Math.min(1, Math.abs(share)),
      ramp = share < 0 ? NEGATIVE : POSITIVE;
    let i = 1;
    while (i < ramp.length - 1 && size > ramp[i][0]) i++;
    const [from, to] = [ramp[i - 1], ramp[i]],
      part = (size - from[0]) / (to[0] - from[0]);
    const mixed = [1, 2, 3].map((c) => from[c] + part * (to[c] - from[c]));
    return [...mixed, 230 * size ** 0.75];
  }

  /** A weight as a share of the end of the scale; `root` draws small weights larger. */
  function share(weight, end, root) {
    const part = end > 0 ? weight / end : 0;
    return root ? Math.sign(part) * Math.sqrt(Math.abs(part)) : part;
  }

  /** {grid, heads, weights: base64 int8, scale: [per head], ...} -> the same with `weights` as Int8Array. */
  function unpack(answer) {
    if (typeof answer.weights !== "string") return answer;
    const bytes = Uint8Array.from(atob(answer.weights), (letter) => letter.charCodeAt(0));
    return { ...answer, weights: new Int8Array(bytes.buffer) };
  }

  /** The weights of a head, or the mean of all heads: Float32Array (h * w). */
  function weightsOf(answer, head) {
    const cells = answer.grid[0] * answer.grid[1],
      found = new Float32Array(cells);
    const heads = head === "mean" ? [...Array(answer.heads).keys()] : [head];
    for (const h of heads) {
      const factor = answer.scale[h] / heads.length,
        start = h * cells;
      for (let i = 0; i < cells; i++) found[i] += factor * answer.weights[start + i];
    }
    return found;
  }

  /** Least and most of a map. */
  function range(map) {
    let low = Infinity,
      high = -Infinity;
    for (const weight of map) {
      if (weight < low) low = weight;
      if (weight > high) high = weight;
    }
    return { low, high };
  }

  /** Pixels of shares from -1 to 1 in 2 * STEPS + 1 steps; `solid` ones on the plate, others to be laid on a photograph. */
  const table = kept((solid) => {
    const bytes = new Uint8ClampedArray(4 * (2 * STEPS + 1));
    for (let i = -STEPS; i <= STEPS; i++) {
      const [r, g, b, opacity] = colour(i / STEPS),
        over = (value, under) => under + (opacity / 255) * (value - under);
      const pixel = solid ? [over(r, PLATE[0]), over(g, PLATE[1]), over(b, PLATE[2]), 255] : [r, g, b, opacity];
      bytes.set(pixel, 4 * (i + STEPS));
    }
    return new Uint32Array(bytes.buffer);
  });

  /** A canvas of a size, "rows x columns", that is drawn again and again. */
  const sheet = kept((size) => {
    const [rows, columns] = size.split("x").map(Number),
      canvas = Object.assign(document.createElement("canvas"), { width: columns, height: rows }),
      context = canvas.getContext("2d", { willReadFrequently: true }), // in plain memory: it is written, not painted
      pixels = context.createImageData(columns, rows);
    return { canvas, context, pixels, words: new Uint32Array(pixels.data.buffer) };
  });

  /** A function of a text or flag whose values are kept. */
  function kept(make) {
    const found = new Map();
    return (key) => {
      if (!found.has(key)) {
        if (found.size > 20) found.clear();
        found.set(key, make(key));
      }
      return found.get(key);
    };
  }

  /** A canvas with one pixel a patch, good until the next call. */
  function tile(map, grid, end, root, solid) {
    const { canvas, context, pixels, words } = sheet(grid.join("x")),
      colours = table(Boolean(solid));
    for (let i = 0; i < map.length; i++) {
      const part = Math.min(1, Math.max(-1, share(map[i], end, root)));
      words[i] = colours[STEPS + Math.round(part * STEPS)];
    }
    context.putImageData(pixels, 0, 0);
    return canvas;
  }

  /** The photograph in grey and darker, to be drawn under a map. */
  function dim(photo) {
    const canvas = document.createElement("canvas");
    canvas.width = photo.naturalWidth || photo.width;
    canvas.height = photo.naturalHeight || photo.height;
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.drawImage(photo, 0, 0);
    const pixels = context.getImageData(0, 0, canvas.width, canvas.height),
      data = pixels.data;
    for (let i = 0; i < data.length; i += 4) {
      const grey = FLOOR + DIM * (0.299 * data[i] + 0.587 * data[i + 1] + 0.114 * data[i + 2]);
      data[i] = data[i + 1] = data[i + 2] = grey;
    }
    context.putImageData(pixels, 0, 0);
    return canvas;
  }

  const hatching = kept((step) => {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = step;
    const lines = canvas.getContext("2d");
    lines.strokeStyle = "rgba(255, 255, 255, 0.75)";
    lines.lineWidth = step / 7;
    lines.beginPath();
    for (const shift of [-step, 0, step]) {
      lines.moveTo(shift, step);
      lines.lineTo(shift + step, 0);
    }
    lines.stroke();
    return lines.createPattern(canvas, "repeat");
  });

  /** The patches with clearly negative weights, those next to each other in a row as one rectangle. */
  function negative(canvas, { map, grid, end, root }) {
    const region = new Path2D(),
      [, columns] = grid,
      below = (i) => share(map[i], end, root) < -HATCHED;
    for (let i = 0; i < map.length; i++) {
      if (!below(i)) continue;
      const first = i;
      while ((i + 1) % columns && i + 1 < map.length && below(i + 1)) i++;
      const [x, y, wide, high] = cell(canvas, grid, first);
      region.rect(x, y, wide * (i - first + 1), high);
    }
    return region;
  }

  /** The rectangle of a patch in a canvas: [x, y, width, height]. */
  function cell(canvas, grid, index) {
    const [rows, columns] = grid,
      row = Math.floor(index / columns),
      column = index % columns;
    const [x, y] = [(column * canvas.width) / columns, (row * canvas.height) / rows];
    return [x, y, canvas.width / columns, canvas.height / rows];
  }

  function outline(context, box, dots, colour, width) {
    const [x, y, wide, high] = box;
    context.lineWidth = (width + 2) * dots;
    context.strokeStyle = "rgba(0, 0, 0, 0.7)";
    context.strokeRect(x, y, wide, high);
    context.lineWidth = width * dots;
    context.strokeStyle = colour;
    context.strokeRect(x, y, wide, high);
  }

  /** Draw a map. Options: photo, dimmed (canvas of `dim`), strength of the photograph 0 to 1, map, grid, end, root, lit
      (indices of patches shown as they are), query and pointer ({grid, index}), dots (device pixels per pixel). */
  function paint(canvas, options) {
    const context = canvas.getContext("2d"),
      { width, height } = canvas,
      dots = options.dots || 1;
    context.fillStyle = "#17181b";
    context.fillRect(0, 0, width, height);
    context.imageSmoothingEnabled = true;
    if (options.dimmed) {
      context.globalAlpha = options.strength ?? 1;
      context.drawImage(options.dimmed, 0, 0, width, height);
      context.globalAlpha = 1;
    }
    if (options.map) {
      context.imageSmoothingEnabled = false;
      context.drawImage(tile(options.map, options.grid, options.end, options.root), 0, 0, width, height);
      context.fillStyle = hatching(Math.round(7 * dots));
      context.fill(negative(canvas, options));
    }
    if (options.lit) light(context, canvas, options, dots);
    if (options.pointer)
      outline(context, cell(canvas, options.pointer.grid, options.pointer.index), dots, "#d8d8d8", 1);
    if (options.query) outline(context, cell(canvas, options.query.grid, options.query.index), dots, "#ffffff", 2);
  }

  function light(context, canvas, options, dots) {
    const region = new Path2D(),
      places = options.grid[0] * options.grid[1];
    for (const index of options.lit) if (index < places) region.rect(...cell(canvas, options.grid, index));
    context.save();
    context.clip(region);
    context.imageSmoothingEnabled = true;
    context.drawImage(options.photo, 0, 0, canvas.width, canvas.height);
    context.fillStyle = "rgba(255, 221, 120, 0.28)";
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.restore();
    context.lineWidth = dots;
    context.strokeStyle = "rgba(255, 224, 130, 0.95)";
    context.stroke(region);
  }

  /** Draw a small map without a photograph. */
  function thumbnail(canvas, map, grid, end, root) {
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(tile(map, grid, end, root, true), 0, 0, canvas.width, canvas.height);
  }

  /** Draw the scale from low to high (which include zero), with the negative part hatched. */
  function legend(canvas, low, high, end, root, dots) {
    const context = canvas.getContext("2d"),
      { width, height } = canvas;
    const steps = Float32Array.from({ length: 256 }, (_, i) => low + ((high - low) * i) / 255);
    context.imageSmoothingEnabled = true;
    context.drawImage(tile(steps, [1, 256], end, root, true), 0, 0, width, height);
    if (low < 0) {
      context.fillStyle = hatching(Math.round(7 * dots));
      const below = Math.max(0, -low - end * (root ? HATCHED ** 2 : HATCHED)) / (high - low);
      context.fillRect(0, 0, width * below, height);
    }
  }

  /** A number with two or three digits that matter. */
  function digits(value) {
    const size = Math.abs(value),
      sign = value < 0 ? "−" : "";
    if (size === 0) return "0";
    if (size < 1e-4) return sign + size.toExponential(0).replace("-", "−");
    return sign + (size < 0.995 ? size.toPrecision(2) : size.toFixed(size < 9.995 ? 2 : size < 99.95 ? 1 : 0));
  }

  return { unpack, weightsOf, range, dim, paint, thumbnail, legend, digits, cell };
})();
