"use strict";
// Reads the document of `python3 -m deepinfer.probe --json` in plain words. The document is foreign text: it only ever
// becomes text nodes, never markup, and no link is made of it.
(() => {
  const SCHEMA = 1; // of the document; tests/site compares it with the probe's own number
  const LIMIT = 4 * 1024 * 1024; // bytes; a document has some ten thousand
  const SHOWN = 256; // items of one list, so that a hostile document cannot stall the page
  const LONGEST = 4000; // characters of one text
  const VERDICTS = ["eligible", "draft", "unsupported", "no-accelerator", "fixable", "undetermined"];
  const MATRIX = JSON.parse(document.getElementById("matrix-data").textContent);
  const PROBE = "python3 -m deepinfer.probe";
  const byId = (id) => document.getElementById(id);

  // -- text and elements ----------------------------------------------------------------------------------------------

  // Control characters and direction overrides could make a line read as something else: they are shown by number.
  function clean(value) {
    const text = String(value).replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g,
      (sign) => "\\u" + sign.charCodeAt(0).toString(16).padStart(4, "0"));
    return text.length > LONGEST ? text.slice(0, LONGEST) + " … (cut here)" : text;
  }

  function make(tag, name, ...children) {
    const node = document.createElement(tag);
    if (name) node.className = name;
    for (const child of children.flat()) {
      if (child !== null && child !== "") node.append(child instanceof Node ? child : clean(child));
    }
    return node;
  }

  // Digits in groups by spacing alone, so that a copy holds the plain number.
  function digits(number) {
    const groups = String(number).replace(/\B(?=(\d{3})+$)/g, " ").split(" ");
    return make("span", "", groups.map((group) => make("span", "group", group)));
  }

  function listed(items, render) {
    const nodes = items.slice(0, SHOWN).map(render);
    if (items.length > SHOWN) nodes.push(make("li", "item", `… and ${items.length - SHOWN} more`));
    return nodes;
  }

  // -- what was handed over? ------------------------------------------------------------------------------------------

  class NotRead extends Error {
    constructor(what, fix) {
      super(what);
      this.fix = fix;
    }
  }

  const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

  function parse(text) {
    const bare = text.replace(/^\ufeff/, "").trim();
    if (!bare) throw new NotRead("There is nothing to read.", `Paste what this prints: ${PROBE} --json`);
    try {
      return JSON.parse(bare);
    } catch {
      return parseInside(bare);
    }
  }

  // A copy from a terminal brings the prompt along: what stands between the first { and the last } may be the document.
  function parseInside(text) {
    const start = text.search(/^\{\s*$/m);
    const end = text.lastIndexOf("}");
    try {
      if (start > 0 || (start === 0 && end < text.length - 1)) return JSON.parse(text.slice(start, end + 1));
    } catch { /* then it is what it looks like */ }
    throw notJson(text);
  }

  function notJson(text) {
    if (text.includes("\u0000") || text.includes("\ufffd")) {
      return new NotRead("This is no text: it looks like a binary file.", `Take the file that this wrote: ${PROBE} --json > probe.json`);
    }
    if (/^(Eligible|Draft RFC only|Accepted RFC|Not supported|No longer supported|Not listed|No accelerator|Fixable|Undetermined)\b/m.test(text)) {
      return new NotRead("This is the probe's report for people, not its JSON.", `Print the document: ${PROBE} --json`);
    }
    if (/^DI\d{3}: /m.test(text)) {
      return new NotRead("This is an error message of DeepInfer; it names its own fix.", `After it is mended: ${PROBE} --json`);
    }
    const cut = /^\s*\{/.test(text) && !/\}\s*$/.test(text);
    return new NotRead(
      cut ? "This is not JSON: it begins like a document, but its end is missing." : "This is not JSON.",
      `Copy all of what this prints: ${PROBE} --json`);
  }

  // Each thing that people have at hand and mistake for the document gets its own answer.
  function named(value) {
    const again = `Print one on the host: ${PROBE} --json`;
    if (Array.isArray(value)) return new NotRead("This is JSON, but a list, not a probe result.", again);
    if (!isObject(value)) return new NotRead("This is JSON, but a single value, not a probe result.", again);
    if ("artifact_id" in value) {
      return new NotRead("This describes a built artifact, not a host.", `To judge the host: ${PROBE} --json`);
    }
    if (!("verdict" in value) && (isObject(value.cmds) || isObject(value.files))) {
      return new NotRead("This is a recorded host: what was read of it, not yet judged.", `Judge it: ${PROBE} --replay FILE --json`);
    }
    if ("gate" in value && "source_digest" in value) {
      return new NotRead("This is evidence of one gate of an entry, not a verdict on a host.", `To judge the host: ${PROBE} --json`);
    }
    if (Array.isArray(value.entries) && isObject(value.sources)) {
      return new NotRead("This is the compiled support matrix, not a probe result.", again);
    }
    if (!("verdict" in value)) return new NotRead("This is JSON, but it holds no verdict: not a probe result.", again);
    return null;
  }

  function checked(value) {
    const wrong = named(value);
    if (wrong) throw wrong;
    const again = `Print it again, and change nothing in it: ${PROBE} --json`;
    if (!Number.isInteger(value.schema)) throw new NotRead("This probe result has no schema number.", again);
    if (value.schema > SCHEMA) {
      throw new NotRead(`This was written by a newer probe: schema ${value.schema}, and this page reads ${SCHEMA}.`,
        "Open site/index.html of that newer version.");
    }
    if (value.schema < SCHEMA) throw new NotRead(`No probe writes schema ${value.schema}.`, again);
    if (!VERDICTS.includes(value.verdict)) throw new NotRead(`No verdict is called “${clean(value.verdict)}”.`, again);
    const odd = oddKey(value);
    if (odd) throw new NotRead(`This probe result was altered or cut: “${odd}” is missing or odd.`, again);
    return value;
  }

  function oddKey(document) {
    const text = (value) => typeof value === "string";
    const maybe = (value) => value === null || text(value);
    const list = (value, fits) => Array.isArray(value) && value.every(fits);
    const rules = {
      entry: maybe,
      rfc: (value) => value === null || Number.isInteger(value),
      blocking: (value) => list(value, text),
      capacity: (value) => ["fits", "does-not-fit", "unknown"].includes(value),
      aspects: (value) => isObject(value) && Object.values(value).every((item) => isObject(item) && text(item.verdict) && list(item.blocking, text)),
      notes: (value) => list(value, text),
      devices: (value) => list(value, (item) => isObject(item) && ["vendor", "name", "verdict"].every((key) => text(item[key])) && maybe(item.entry)
        && Number.isInteger(item.index) && (item.memory_bytes === null || Number.isInteger(item.memory_bytes))
        && ["arch", "identified_by", "pci_id"].every((key) => maybe(item[key])) && list(item.partitions, text)),
      checks: (value) => list(value, (item) => isObject(item) && ["id", "outcome", "found"].every((key) => text(item[key]))
        && ["needed", "where", "why", "fix"].every((key) => maybe(item[key]))),
    };
    return Object.keys(rules).find((key) => !rules[key](document[key]));
  }

  // -- the sentence ---------------------------------------------------------------------------------------------------
  // Word for word the first line of the probe's own report: tests/site holds the two together.

  // Own keys only: a foreign id such as "constructor" must not find what every object has.
  const entryOf = (id) => (id !== null && Object.hasOwn(MATRIX.entries, id) ? MATRIX.entries[id] : null);
  const titleOf = (id) => (entryOf(id) ? entryOf(id).title : id);

  function summary(devices) {
    const counts = new Map();
    for (const { name } of devices) counts.set(name, (counts.get(name) || 0) + 1);
    return [...counts].slice(0, SHOWN).map(([name, count]) => `${count} x ${name}`).join(", ");
  }

  function sentence(result) {
    const id = result.entry;
    const seen = id === null ? summary(result.devices) : summary(result.devices.filter((one) => one.entry === id)) || titleOf(id);
    const status = entryOf(id) ? entryOf(id).status : "";
    if (result.verdict === "no-accelerator") return "No accelerator: /sys/bus/pci/devices and /dev were read and show none.";
    if (id === null && result.verdict === "unsupported") {
      return `Not listed: ${seen}. No entry of the support matrix names it; an RFC can propose it.`;
    }
    if (id === null) {
      return `Undetermined: ${seen ? `${seen} could not be identified` : "whether an accelerator is here could not be read"}.`;
    }
    if (result.verdict === "draft") {
      return `${status === "accepted" ? "Accepted RFC, nothing built yet" : "Draft RFC only"}: ${seen} (${id}), RFC ${result.rfc}.`;
    }
    if (result.verdict === "unsupported") {
      return `${status === "removed" ? "No longer supported" : "Not supported"}: ${seen} (${id}).`;
    }
    return ofBuilt(result, seen, status === "reference" ? "reference target" : "supported target");
  }

  // "2 checks (driver, toolkit)"; an empty text for none.
  function ofKinds(result, outcome) {
    const own = result.checks.filter((check) => check.outcome === outcome);
    const kinds = [...new Set(own.map((check) => check.id.split(".")[0]))].sort();
    return own.length ? `${own.length} check${own.length === 1 ? "" : "s"} (${kinds.slice(0, SHOWN).join(", ")})` : "";
  }

  function ofBuilt(result, seen, kind) {
    const judged = Object.keys(result.aspects);
    const doing = judged.length === 2 ? "build and run" : judged[0];
    const who = `${seen} (${result.entry}) is a`;
    const [failing, unread] = [ofKinds(result, "fail"), ofKinds(result, "unknown")];
    if (result.verdict === "fixable") {
      return `Fixable: ${who} ${kind}; to ${doing} here, mend ${failing}${unread ? `; ${unread} could not be read` : ""}.`;
    }
    if (result.verdict === "undetermined") return `Undetermined: ${who} ${kind}, but ${unread} could not be read.`;
    if (result.capacity === "does-not-fit" && judged.includes("run")) {
      return `Eligible: ${who} supported target; the default checkpoint does not fit here (needs ${MATRIX.payload_bytes} bytes, ${memory(result)} here).`;
    }
    return `Eligible: ${who} ${kind}, and this host can ${doing} for it.`;
  }

  function counted(result) {
    return result.devices.filter((one) => one.visible !== false && one.entry === result.entry);
  }

  // Bytes of all counted devices; 0 unless every one of them is known.
  function memory(result) {
    const sizes = counted(result).map((one) => one.memory_bytes);
    return sizes.includes(null) ? 0 : sizes.reduce((sum, size) => sum + size, 0);
  }

  // -- has the matrix moved on since? ---------------------------------------------------------------------------------

  const FAMILY = {
    supported: "built", deprecated: "built", reference: "built", draft: "draft", accepted: "draft",
    unsupported: "unsupported", removed: "unsupported", rejected: "unsupported", withdrawn: "unsupported",
  };
  const familyOf = (verdict) => (["eligible", "fixable", "undetermined"].includes(verdict) ? "built" : verdict);

  function moved(result) {
    const places = [[result.entry, result.verdict, result.rfc]];
    for (const one of result.devices) {
      // Where another target was asked for by name, a device of a built entry is rightly called unsupported.
      const other = one.entry !== result.entry && familyOf(result.verdict) === "built" && one.verdict === "unsupported";
      if (!other || !entryOf(one.entry) || FAMILY[entryOf(one.entry).status] !== "built") places.push([one.entry, one.verdict, null]);
    }
    const said = new Set(places.map(([id, verdict, rfc]) => (id === null ? "" : movedEntry(id, verdict, rfc))));
    for (const one of result.devices) {
      const now = one.entry === null ? nowListed(one) : null;
      if (now) said.add(`${one.name} was not listed then; now ${now} lists it`);
    }
    return [...said].filter(Boolean).slice(0, 8);
  }

  function movedEntry(id, verdict, rfc) {
    const now = entryOf(id);
    if (!now) return `the matrix of this page has no entry ${id}`;
    if (familyOf(verdict) !== FAMILY[now.status]) return `${id} was judged “${verdict}”; its status is now ${now.status}`;
    if (rfc !== null && now.rfc !== rfc) return `${id} belonged to RFC ${rfc}; now to RFC ${now.rfc}`;
    return "";
  }

  function nowListed(device) {
    const fits = (pattern, name) => (pattern.endsWith("*") ? name.startsWith(pattern.slice(0, -1)) : name === pattern);
    const arch = (device.arch || "").toLowerCase();
    return Object.keys(MATRIX.entries).find((id) => {
      const match = MATRIX.entries[id].match;
      return match.capabilities.includes(arch) || match.soc.some((pattern) => arch !== "" && fits(pattern, arch));
    });
  }

  // -- the rest of the answer -----------------------------------------------------------------------------------------

  function aspects(result) {
    const names = { build: "Building here", run: "Running here" };
    return Object.keys(names).filter((key) => isObject(result.aspects[key])).map((key) => {
      const { verdict, blocking } = result.aspects[key];
      const why = blocking.length ? `; in the way: ${blocking.join(", ")}` : "";
      return make("li", "", `${names[key]}: ${verdict}${why}.`);
    });
  }

  function capacity(result) {
    if (result.verdict === "no-accelerator") return [];
    const total = memory(result);
    const need = digits(MATRIX.payload_bytes);
    // Whether it fits is a word of hope; a device that nothing is built for gets the two numbers alone.
    const built = familyOf(result.verdict) === "built";
    const words = { fits: "fits", "does-not-fit": "does not fit", unknown: "" }[result.capacity];
    const node = make("li", "");
    if (!words) node.append("Memory: not every size could be read, so nothing is said about whether the default checkpoint (", need, " bytes) fits.");
    else if (!built) node.append("Memory: ", digits(total), ` bytes on ${summary(counted(result))}; the default checkpoint has `, need, ". No verdict follows from it.");
    else node.append("Memory: the default checkpoint (", need, ` bytes) ${words} into the `, digits(total),
      ` bytes of ${summary(counted(result))}; KV cache and scratch are not counted. It is no part of the verdict: ranks may span hosts.`);
    return [node];
  }

  function check(one) {
    const head = make("p", "", make("span", `word ${one.outcome}`, one.outcome), make("code", "", one.id));
    const rows = [head, make("p", "", `Found: ${one.found}`)];
    if (one.needed && one.outcome !== "pass") rows.push(make("p", "", `Needed: ${one.needed}`));
    if (one.why) rows.push(make("p", "", `Why: ${one.why}`));
    if (one.where) rows.push(make("p", "soft", `Looked: ${one.where}`));
    if (one.fix) rows.push(make("p", "", "Fix:"), make("pre", "", one.fix));
    return make("li", "item", rows);
  }

  function device(one) {
    const by = one.identified_by ? `read by ${one.identified_by}` : "nothing answered for it";
    const facts = [one.arch || one.pci_id || "not identified", by];
    const size = one.memory_bytes === null ? "memory unknown" : make("span", "", digits(one.memory_bytes), " bytes");
    const more = [];
    if (one.partitions.length) more.push(`cut into slices: ${one.partitions.slice(0, SHOWN).join(", ")}`);
    if (one.exposed === false) more.push("not exposed: no device node here");
    if (one.visible === false) more.push("hidden by the visible-devices variable");
    const status = entryOf(one.entry) ? ` (${entryOf(one.entry).status})` : "";
    more.push(one.entry === null ? "no entry lists it" : `entry ${one.entry}${status}`);
    return make("li", "item",
      make("p", "", make("span", `word ${VERDICTS.includes(one.verdict) ? one.verdict : ""}`, one.verdict), make("strong", "", `${one.vendor} ${one.index}: ${one.name}`)),
      make("p", "soft", `${facts.join(", ")}, `, size, `; ${more.join("; ")}.`));
  }

  function next(result) {
    const first = (key) => (result.checks.find((one) => one[key]) || {})[key];
    const judged = Object.keys(result.aspects);
    const half = judged.length === 1 && ["build", "run"].includes(judged[0]) ? ` --for ${judged[0]}` : "";
    switch (result.verdict) {
      case "eligible":
        return judged.includes("build") ? [make("pre", "", "pip install .")] : [make("pre", "", `${PROBE} --for build`)];
      case "draft":
        return [make("p", "", "An RFC proposes this device; until its blockers are closed with evidence nothing is built for it."), ...rfcOf(result)];
      case "unsupported":
        return [make("p", "", `Why: ${first("why") || "not stated"}`), make("pre", "", first("fix") || "choose another device")];
      case "no-accelerator":
        return [make("p", "", `DeepInfer runs on ${MATRIX.built.join(" and ")} only. ${MATRIX.advice}`),
          make("p", "", "To build for another machine:"), make("pre", "", `pip install . -C deepinfer.target=${MATRIX.target}`)];
      default:
        return [make("p", "", "Mend what is listed above, then ask again:"), make("pre", "", PROBE + half)];
    }
  }

  // Links come from this page's own data only.
  function rfcOf(result) {
    const key = String(result.rfc);
    if (!Object.hasOwn(MATRIX.rfcs, key)) return [make("p", "", `This page knows no RFC ${key}.`)];
    const rfc = MATRIX.rfcs[key];
    const link = make("a", "", `RFC ${key}: ${rfc.title}`);
    link.href = `#rfc-${key}`;
    const nodes = [make("p", "", link), make("ul", "", rfc.blockers.map((one) => make("li", "", make("code", "", one.id), ` ${one.text}`)))];
    if (rfc.upstream) {
      const upstream = make("a", "", rfc.upstream);
      upstream.href = rfc.upstream;
      nodes.push(make("p", "", "Upstream: ", upstream));
    }
    return nodes;
  }

  function details(result) {
    const block = (title, nodes, name = "plain") => (nodes.length ? [make("h3", "", title), make("ul", name, nodes)] : []);
    // A refusal has one finding, and it is told under "Next" already.
    const told = familyOf(result.verdict) === "built" ? result.checks : [];
    const of = (outcome) => told.filter((one) => one.outcome === outcome);
    const [failing, unread, warnings] = [of("fail"), of("unknown"), of("warn")];
    const all = make("details", "", make("summary", "", `Checks: ${result.checks.length}`), make("ul", "plain", listed(result.checks, check)));
    return [
      ...block("In short", [...aspects(result), ...capacity(result)], ""),
      ...block(`To mend: ${failing.length}`, listed(failing, check)),
      ...block(`Could not be read: ${unread.length}`, listed(unread, check)),
      ...block("Warnings, none in the way", listed(warnings, check)),
      ...block(`Device by device: ${result.devices.length}`, listed(result.devices, device)),
      ...block("Notes", listed(result.notes, (note) => make("li", "", note)), ""),
      make("h3", "", "Next"), ...next(result),
      ...(result.checks.length ? [make("h3", "", "Everything that was looked at"), all] : []),
    ];
  }

  // -- the box --------------------------------------------------------------------------------------------------------

  function show(name, lines, rest) {
    const answer = byId("answer");
    answer.className = name;
    answer.replaceChildren(...lines);
    byId("details").replaceChildren(...rest);
  }

  function fail(error) {
    const known = error instanceof NotRead;
    const what = known ? error.message : "This page failed to read it; that is our fault.";
    const fix = known ? error.fix : `In the terminal instead: ${PROBE}`;
    const [words, command] = fix.split(/(?<=: )(?=python3 )/);
    show("not-read", [make("p", "", what), make("p", "", words), ...(command ? [make("pre", "", command)] : [])], []);
  }

  function read(text) {
    try {
      if (text.length > LIMIT) throw tooLarge();
      const result = checked(parse(text));
      const since = moved(result);
      const lines = [make("p", "", sentence(result))];
      if (since.length) {
        lines.push(make("p", "moved", `Status changed since, run the probe again: ${since.join("; ")}.`));
      }
      show(result.verdict, lines, details(result));
    } catch (error) {
      fail(error);
    }
  }

  function tooLarge() {
    return new NotRead(`This is larger than any probe result: the limit is ${LIMIT} bytes.`, `Take the file that this wrote: ${PROBE} --json > probe.json`);
  }

  // A redirect in some shells writes UTF-16 with a mark in front.
  function decoded(buffer) {
    const [first, second] = new Uint8Array(buffer.slice(0, 2));
    const name = first === 0xff && second === 0xfe ? "utf-16le" : first === 0xfe && second === 0xff ? "utf-16be" : "utf-8";
    return new TextDecoder(name).decode(buffer);
  }

  async function readFile(file) {
    byId("text").value = "";
    if (file.size > LIMIT) return fail(tooLarge());
    let buffer;
    try {
      buffer = await file.arrayBuffer();
    } catch {
      return fail(new NotRead("That file cannot be read; a folder cannot either.", "Drop one file, or paste its text."));
    }
    read(decoded(buffer));
    return toAnswer();
  }

  function toAnswer() {
    byId("answer").focus({ preventScroll: true });
    byId("answer").scrollIntoView({ block: "nearest" });
  }

  function dropped(event) {
    event.preventDefault();
    byId("box").classList.remove("over");
    const { files } = event.dataTransfer;
    if (files.length > 1) fail(new NotRead(`These are ${files.length} files.`, "Drop one file at a time."));
    else if (files.length === 1) readFile(files[0]);
    else read(event.dataTransfer.getData("text/plain"));
  }

  function startBox() {
    const text = byId("text");
    byId("box").hidden = false;
    byId("read").addEventListener("click", () => { read(text.value); toAnswer(); });
    byId("choose").addEventListener("click", () => byId("file").click());
    byId("file").addEventListener("change", (event) => {
      if (event.target.files.length) readFile(event.target.files[0]);
      event.target.value = ""; // the same file may be chosen again
    });
    byId("clear").addEventListener("click", () => { text.value = ""; show("", [], []); text.focus(); });
    text.addEventListener("paste", () => setTimeout(() => read(text.value)));
    text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("read").click();
    });
    // Anywhere on the page: a file that misses the box would otherwise replace the page.
    document.addEventListener("dragover", (event) => { event.preventDefault(); byId("box").classList.add("over"); });
    document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) byId("box").classList.remove("over"); });
    document.addEventListener("drop", dropped);
  }

  // -- the filter -----------------------------------------------------------------------------------------------------

  function startFilter() {
    const rows = [...document.querySelectorAll("#matrix tbody tr")];
    byId("filter-row").hidden = false;
    byId("filter").addEventListener("input", (event) => {
      const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
      let left = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        left += row.hidden ? 0 : 1;
      }
      byId("filter-count").textContent = words.length ? `${left} of ${rows.length} entries` : "";
    });
  }

  startBox();
  startFilter();
})();
