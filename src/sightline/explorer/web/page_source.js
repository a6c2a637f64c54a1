/* The answers inside a page that needs no server. */
"use strict";
class PageSource {
  live = false;
}
