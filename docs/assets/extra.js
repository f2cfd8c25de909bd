// Wide tables can be scrolled with the keyboard. The theme wraps them when the page is loaded.
addEventListener("load", () => {
  for (const wrap of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset__table")) {
    if (wrap.scrollWidth > wrap.clientWidth) wrap.tabIndex = 0;
  }
});
