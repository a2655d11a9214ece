// What the theme leaves out for those who use a keyboard or hear the page.
new MutationObserver(() => {
  // A landmark without a name around each button that copies a block is none.
  for (const each of document.querySelectorAll("nav.md-code__nav:not([role])")) each.setAttribute("role", "none")
  // A table that is wider than the screen scrolls.
  for (const each of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])"))
    if (each.scrollWidth > each.clientWidth) each.tabIndex = 0
}).observe(document.body, { childList: true, subtree: true })
