// The search page without a server: lunr and the index are loaded as scripts, which works from disk too.
(function () {
  const list = document.getElementById("mkdocs-search-results");
  if (!list) return;
  const query = new URLSearchParams(location.search).get("q") || "";
  const box = document.getElementById("mkdocs-search-query");
  if (box) box.value = query;
  const load = (name) => {
    const script = document.createElement("script");
    script.src = base_url + "/search/" + name;
    document.body.append(script);
    return new Promise((done) => { script.onload = done; });
  };
  window.tuttiSearch = (data) => {
    const pages = new Map(data.docs.map((page) => [page.location, page]));
    const index = lunr(function () {
      this.ref("location"); this.field("title", { boost: 10 }); this.field("text");
      data.docs.forEach((page) => this.add(page));
    });
    const words = lunr.tokenizer(query.replace(/[:~^*+-]/g, " "));
    const found = words.length === 0 ? [] : index.query((q) => words.forEach((word) => {
      q.term(word.toString(), { boost: 10 });
      q.term(word.toString(), { wildcard: lunr.Query.wildcard.TRAILING });
    }));
    list.replaceChildren(...found.slice(0, 30).map(({ ref }) => {
      const entry = document.createElement("article"), head = document.createElement("h3"), link = document.createElement("a");
      const text = document.createElement("p"), page = pages.get(ref);
      link.href = base_url + "/" + ref; link.textContent = page.title; text.textContent = page.text.slice(0, 200);
      head.append(link); entry.append(head, text);
      return entry;
    }));
    if (found.length === 0) list.textContent = "Nothing found for: " + query;
  };
  load("lunr.js").then(() => load("index.js"));
})();
