// The page's views and the tabs that select one. Owns which view is visible; it must never know their
// content. Invariant: the address contains the view, so that it can be bookmarked, and the tabs work
// as in other programs.

/** Connect tabs with views; `onShow()` is called when another view becomes visible. */
export class Views {
  constructor(tabs, onShow) {
    this.tabs = [...tabs];
    this.onShow = onShow;
    for (const tab of this.tabs) {
      tab.addEventListener("click", () => this.go(tab));
      tab.addEventListener("keydown", (event) => this.key(event, tab));
    }
    window.addEventListener("hashchange", () => this.follow());
    this.follow();
  }

  /** Whether a view is visible. */
  shows(name) {
    return this.current.dataset.view === name;
  }

  go(tab) {
    history.replaceState(null, "", `#${tab.dataset.view}`);
    this.follow();
  }

  follow() {
    const named = this.tabs.find(({ dataset }) => `#${dataset.view}` === location.hash);
    this.current = named ?? this.tabs[0];
    for (const tab of this.tabs) {
      const isCurrent = tab === this.current;
      tab.setAttribute("aria-selected", isCurrent);
      tab.tabIndex = isCurrent ? 0 : -1;
      document.getElementById(tab.getAttribute("aria-controls")).hidden = !isCurrent;
    }
    this.onShow();
  }

  key(event, tab) {
    const last = this.tabs.length - 1;
    const at = this.tabs.indexOf(tab);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const next = this.tabs.at(to > last ? 0 : to);
    next.focus();
    this.go(next);
  }
}
