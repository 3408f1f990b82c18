"use strict";
// The page of textual-serve waits for a click before keys go anywhere, and fails where one comes before it is connected.
const focus = () => {
  if (document.body.classList.contains("-loaded")) document.querySelector(".xterm-helper-textarea").focus();
};
addEventListener("focus", focus);
addEventListener("load", () => new MutationObserver(focus).observe(document.body, { attributeFilter: ["class"] }));
