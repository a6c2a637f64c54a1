/* Starts the page, with the answers inside it if there are any, else with a server. */
"use strict";
(() => {
  try {
    const theme = localStorage.getItem("sightline-theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // a page that may not keep anything follows the system
  }
  const data = document.getElementById("sightline-data");
  const app = new App(data ? new PageSource(JSON.parse(data.textContent)) : new HttpSource());
  app.start().catch((error) => app.say(error.message));
})();
