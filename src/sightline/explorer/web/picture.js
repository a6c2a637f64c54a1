/* The panels as one picture, for the download. */
"use strict";
const Picture = {
  SIDE: 480,
  GAP: 24,
  DOTS: 2,

  /** A canvas with title, map and scale of every panel. */
  draw(app) {
    const { SIDE, GAP, DOTS } = Picture,
      panels = app.panels.filter((panel) => panel.info);
    const high = Math.max(...panels.map((panel) => (SIDE * panel.info.pixels[0]) / panel.info.pixels[1]));
    const canvas = document.createElement("canvas"),
      context = canvas.getContext("2d");
    canvas.width = DOTS * (panels.length * (SIDE + GAP) + GAP);
    canvas.height = DOTS * (high + 152);
    context.scale(DOTS, DOTS);
    const style = getComputedStyle(document.body),
      ink = style.color,
      soft = getComputedStyle(document.querySelector(".help")).color;
    context.fillStyle = style.backgroundColor;
    context.fillRect(0, 0, canvas.width, canvas.height);
    const write = (text, x, y, { size = 13, colour = soft, weight = "", align = "left", wide = SIDE } = {}) => {
      context.font = `${weight} ${size}px ${style.fontFamily}`;
      [context.fillStyle, context.textAlign] = [colour, align];
      context.fillText(text, x, y, wide);
    };
    panels.forEach((panel, i) => {
      const x = GAP + i * (SIDE + GAP),
        tall = (SIDE * panel.info.pixels[0]) / panel.info.pixels[1],
        map = panel.map;
      write(panel.mechanism, x, 34, { size: 17, colour: ink, weight: "600" });
      write(panel.info.title, x, 52, { size: 12 });
      const plate = Picture.canvas(SIDE * DOTS, Math.round(tall * DOTS));
      panel.paintOn(plate, DOTS);
      context.drawImage(plate, x, 64, SIDE, tall);
      if (!map) return write(panel.part(".notice").textContent, x, tall + 86);
      if (app.state.view !== "confusion") {
        const scale = Picture.canvas(SIDE * DOTS, 8 * DOTS),
          { low, high: top } = panel.span(map);
        Heatmap.legend(scale, low, top > low ? top : low + 1, panel.end, app.state.scale.endsWith("root"), DOTS);
        context.drawImage(scale, x, tall + 72, SIDE, 8);
        for (const tick of panel.ticks(map))
          write(tick.text, x + tick.where * SIDE, tall + 95, {
            size: 11,
            align: tick.where === 0 ? "left" : tick.where === 1 ? "right" : "center",
          });
      }
      write(panel.value(map), x, tall + 114, { size: 12, colour: ink });
    });
    write(app.caption(), GAP, high + 140, { size: 12, wide: panels.length * (SIDE + GAP) - GAP });
    return canvas;
  },

  canvas(width, height) {
    return Object.assign(document.createElement("canvas"), { width, height });
  },

  /** Give a file to the reader. */
  save(blob, name) {
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  },
};
