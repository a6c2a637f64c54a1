/* Maps in the report of a run: the query follows the pointer over any of the maps of an image; a click holds it. */
"use strict";
(() => {
  /** A figure with the JSON of `hover_maps` becomes a row of maps. */
  async function build(figure) {
    const data = JSON.parse(figure.querySelector("script").textContent),
      photo = new Image();
    photo.src = data.photo;
    await photo.decode();
    const dimmed = Heatmap.dim(photo),
      state = { query: [0.5, 0.5], pointer: null, held: false };
    const row = figure.appendChild(Object.assign(document.createElement("div"), { className: "maps" }));
    const views = data.maps.map((map) => view(row, map, photo, dimmed, state));
    for (const { canvas } of views) {
      const at = (event) => {
        const box = canvas.getBoundingClientRect(),
          inside = (part) => Math.min(0.9999, Math.max(0, part));
        return [inside((event.clientY - box.top) / box.height), inside((event.clientX - box.left) / box.width)];
      };
      const show = () => views.forEach((each) => each.draw());
      canvas.addEventListener("pointermove", (event) => {
        state.pointer = at(event);
        if (!state.held) state.query = state.pointer;
        show();
      });
      canvas.addEventListener("pointerleave", () => ((state.pointer = null), show()));
      canvas.addEventListener("click", (event) => {
        state.held = !state.held;
        state.query = at(event);
        show();
      });
      canvas.addEventListener("keydown", (event) => {
        const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
        if (!by) return;
        event.preventDefault();
        const grid = data.maps[0].queries;
        state.query = [0, 1].map(
          (i) => (Math.min(grid[i] - 1, Math.max(0, Math.floor(state.query[i] * grid[i]) + by[i])) + 0.5) / grid[i],
        );
        Object.assign(state, { held: true, pointer: null });
        show();
      });
    }
  }

  function patch(place, grid) {
    const [row, column] = [0, 1].map((i) => Math.min(grid[i] - 1, Math.floor(place[i] * grid[i])));
    return { grid, index: row * grid[1] + column };
  }

  /** One map with its scale and the number under the pointer. */
  function view(parent, map, photo, dimmed, state) {
    const make = (tag, name) => Object.assign(document.createElement(tag), { className: name });
    const root = make("div", "map"),
      canvas = make("canvas", "plate"),
      title = make("p", "name"),
      scale = make("canvas", "scale"),
      value = make("p", "number");
    const dots = window.devicePixelRatio || 1,
      cells = map.grid[0] * map.grid[1];
    const weights = Heatmap.unpack(map).weights;
    title.textContent = `${map.name}, ${map.mechanism}`;
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "img");
    [canvas.width, canvas.height] = [
      Math.round(260 * dots),
      Math.round((260 * dots * photo.naturalHeight) / photo.naturalWidth),
    ];
    [scale.width, scale.height] = [Math.round(260 * dots), Math.round(7 * dots)];
    root.append(title, canvas, scale, value);
    parent.append(root);
    const draw = () => {
      const query = patch(state.query, map.queries),
        start = query.index * cells,
        step = map.scale[query.index];
      const found = Float32Array.from(weights.subarray(start, start + cells), (weight) => step * weight);
      const { low, high } = Heatmap.range(found),
        least = Math.min(0, low),
        most = Math.max(0, high, least + 1e-12),
        end = Math.max(-least, most);
      const pointer = state.pointer && state.held ? patch(state.pointer, map.grid) : null;
      Heatmap.paint(canvas, { photo, dimmed, map: found, grid: map.grid, end, query, pointer, dots });
      Heatmap.legend(scale, least, most, end, false, dots);
      const key = patch(state.pointer ?? state.query, map.grid),
        times = (weight) => `${Heatmap.digits(weight * map.keys)} ×`;
      const name = `${Math.floor(key.index / map.grid[1])},${key.index % map.grid[1]}`;
      value.textContent = `${times(low)} to ${times(high)}; patch ${name}: ${times(found[key.index])}`;
      canvas.setAttribute("aria-label", `${title.textContent}: ${value.textContent}`);
    };
    draw();
    return { canvas, draw };
  }

  for (const figure of document.querySelectorAll("figure.hover")) build(figure);
})();
