#include "tutti/speech/metrics/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "tutti/core/error.h"
#include "tutti/core/rounding.h"
#include "tutti/speech/text/utf8.h"

namespace tutti::speech {
namespace {

double rounded_rate(double percent) { return round_decimals(percent, kRateDecimals); }
double percent(const EditCounts& counts) { return rounded_rate(counts.error_rate() * 100.0); }

// Columns a terminal gives the text: CJK and emoji take two, combining marks none.
std::size_t display_width(std::string_view text) {
  std::size_t width = 0;
  for (char32_t c : to_utf32(text)) {
    const bool combining =
        (c >= 0x300 && c <= 0x36F) || c == 0x200D || (c >= 0xFE00 && c <= 0xFE0F);
    const bool wide = (c >= 0x1100 && c <= 0x115F) || (c >= 0x2E80 && c <= 0xA4CF) ||
                      (c >= 0xAC00 && c <= 0xD7A3) || (c >= 0xF900 && c <= 0xFAFF) ||
                      (c >= 0xFF00 && c <= 0xFF60) || (c >= 0x1F300 && c <= 0x1FAFF) ||
                      (c >= 0x20000 && c <= 0x3FFFD);
    width += combining ? 0 : wide ? 2 : 1;
  }
  return width;
}

char mark(EditOp op) {
  switch (op) {
    case EditOp::kHit:
      return ' ';
    case EditOp::kSubstitution:
      return 'S';
    case EditOp::kDeletion:
      return 'D';
    case EditOp::kInsertion:
      return 'I';
  }
  return '?';
}

std::string counts_line(const EditCounts& c) {
  return fmt::format("{:.2f} % ({} S, {} D, {} I of {})", percent(c), c.substitutions, c.deletions,
                     c.insertions, c.reference_size());
}

std::string pad(std::string_view text, std::size_t width) {
  const std::size_t used = display_width(text);
  return std::string(text) + std::string(width > used ? width - used : 0, ' ');
}

std::string strip_right(std::string line) {
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

// "WER", or "WER#2" for a second entry of the same class.
std::string short_name(const std::string& name, const std::string& class_path,
                       const ErrorRate& metric) {
  return name_of(metric.kind()) + name.substr(class_path.size());
}

std::vector<const ScoredUtterance*> worst_first(const ErrorRate& metric) {
  std::vector<const ScoredUtterance*> wrong;
  for (const ScoredUtterance& utterance : metric.utterances())
    if (utterance.alignment.counts.errors() > 0) wrong.push_back(&utterance);
  std::stable_sort(wrong.begin(), wrong.end(), [](const auto* a, const auto* b) {
    return a->alignment.counts.errors() > b->alignment.counts.errors();
  });
  return wrong;
}

std::string error_html(const ScoredUtterance& utterance, const std::string& audio) {
  std::string out =
      fmt::format("<div class=\"u\"><b>{} {}</b> {}", escape_html(utterance.who.id),
                  escape_html(utterance.who.speaker), counts_line(utterance.alignment.counts));
  if (!audio.empty())
    out += fmt::format(" <audio controls preload=\"none\" src=\"{}\"></audio>", escape_html(audio));
  out += "<br>";
  for (const AlignedPair& pair : utterance.alignment.pairs) {
    const auto text = [](const std::vector<std::string>& side, int at) {
      return at < 0 ? std::string("&nbsp;") : escape_html(side[static_cast<std::size_t>(at)]);
    };
    out += fmt::format("<span class=\"p {}\"><i>{}</i><i>{}</i></span>", mark(pair.op),
                       text(utterance.reference, pair.reference),
                       text(utterance.hypothesis, pair.hypothesis));
  }
  return out + "</div>\n";
}

void append_utterance(std::string& out, const ScoredUtterance& utterance) {
  std::string ref = "REF:  ", hyp = "HYP:  ", eval = "EVAL: ";
  for (const AlignedPair& pair : utterance.alignment.pairs) {
    const std::string r =
        pair.reference < 0 ? "" : utterance.reference[static_cast<std::size_t>(pair.reference)];
    const std::string h =
        pair.hypothesis < 0 ? "" : utterance.hypothesis[static_cast<std::size_t>(pair.hypothesis)];
    const std::size_t width = std::max({display_width(r), display_width(h), std::size_t{1}});
    const auto shown = [&](const std::string& token) {
      return token.empty() ? std::string(width, '*') : token;
    };
    ref += pad(shown(r), width) + ' ';
    hyp += pad(shown(h), width) + ' ';
    eval += pad(std::string(1, mark(pair.op)), width) + ' ';
  }
  out += fmt::format("{}{}{}: {}\n{}\n{}\n{}\n\n", utterance.who.id,
                     utterance.who.speaker.empty() ? "" : " ", utterance.who.speaker,
                     counts_line(utterance.alignment.counts), strip_right(ref), strip_right(hyp),
                     strip_right(eval));
}

}  // namespace

std::string alignment_text(const ErrorRate& metric, bool all) {
  std::string out;
  for (const ScoredUtterance& utterance : metric.utterances())
    if (all || utterance.alignment.counts.errors() > 0) append_utterance(out, utterance);
  out += fmt::format("{}: {}, {} utterances, {} with errors\n", name_of(metric.kind()),
                     counts_line(metric.total()), metric.utterances().size(),
                     metric.sentence_errors());
  return out;
}

std::string speaker_table(const ErrorRate& metric) {
  std::map<std::string, std::int64_t> utterances;
  for (const ScoredUtterance& utterance : metric.utterances()) ++utterances[utterance.who.speaker];
  const auto by_speaker = metric.by_speaker();
  std::vector<std::pair<std::string, EditCounts>> rows(by_speaker.begin(), by_speaker.end());
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return a.second.error_rate() > b.second.error_rate();
  });
  std::size_t width = 8;
  for (const auto& row : rows) width = std::max(width, display_width(row.first));
  std::string out = fmt::format("{} {:>7} {:>9} {:>8} {:>8} {:>8} {:>8}\n", pad("speaker", width),
                                "utts", "tokens", "S", "D", "I", name_of(metric.kind()));
  const auto line = [&](const std::string& name, std::int64_t count, const EditCounts& c) {
    out += fmt::format("{} {:>7} {:>9} {:>8} {:>8} {:>8} {:>8.2f}\n", pad(name, width), count,
                       c.reference_size(), c.substitutions, c.deletions, c.insertions, percent(c));
  };
  for (const auto& [speaker, counts] : rows)
    line(speaker.empty() ? "-" : speaker, utterances[speaker], counts);
  line("total", static_cast<std::int64_t>(metric.utterances().size()), metric.total());
  return out;
}

Json summary_json(const ErrorRate& metric) {
  const Confidence confidence = metric.confidence();
  Json out = {{name_of(metric.kind()), percent(metric.total())},
              {"ci95", {rounded_rate(confidence.low), rounded_rate(confidence.high)}}};
  out.update(metric.total().to_json());
  out["utterances"] = metric.utterances().size();
  out["utterances_with_errors"] = metric.sentence_errors();
  return out;
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

void MetricsReport::add(const std::string& class_path, const std::string& test_set,
                        const ErrorRate& metric, int entry, std::size_t num_undecoded) {
  for (const Row& row : rows_)
    if (row.class_path == class_path && row.entry == entry && row.test_set == test_set)
      throw InternalError(
          fmt::format("metric {} entry {} on {} was added twice", class_path, entry, test_set));
  rows_.push_back({class_path, entry, test_set, &metric, num_undecoded});
}

std::vector<std::pair<std::string, const MetricsReport::Row*>> MetricsReport::named_rows() const {
  std::map<std::string, std::vector<int>>
      entries;  // class path -> its entries in order of appearance
  std::vector<std::pair<std::string, const Row*>> out;
  for (const Row& row : rows_) {
    std::vector<int>& seen = entries[row.class_path];
    auto it = std::find(seen.begin(), seen.end(), row.entry);
    if (it == seen.end()) it = seen.insert(seen.end(), row.entry);
    const auto number = it - seen.begin() + 1;
    out.emplace_back(number == 1 ? row.class_path : fmt::format("{}#{}", row.class_path, number),
                     &row);
  }
  return out;
}

Json MetricsReport::to_json() const {
  Json out = Json::object();
  for (const auto& [name, row] : named_rows()) {
    Json& summary = out[name][row->test_set] = summary_json(*row->metric);
    summary["utterances_not_decoded"] = row->num_undecoded;
  }
  return out;
}

std::string MetricsReport::to_text() const {
  std::size_t width = 8;
  for (const Row& row : rows_) width = std::max(width, display_width(row.test_set));
  std::string out;
  for (const auto& [name, row] : named_rows()) {
    const Confidence c = row->metric->confidence();
    out += fmt::format("{} {} {} 95 % [{:.2f}, {:.2f}]\n", pad(row->test_set, width),
                       short_name(name, row->class_path, *row->metric),
                       counts_line(row->metric->total()), c.low, c.high);
  }
  return out;
}

std::string MetricsReport::to_html(const std::string& title, const AudioLink& audio) const {
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width\"><title>{0}</title>\n<style>"
      ":root{{color-scheme:light "
      "dark}}body{{font:15px/1.5 system-ui,sans-serif;margin:2em;max-width:80em}}"
      ".S,.D,.I{{color:#000}}audio{{height:1.8em;vertical-align:middle}}"
      "table{{border-collapse:collapse}}td,th{{padding:.2em "
      ".8em;text-align:right;border-bottom:1px solid #ccc}}"
      "td:first-child,th:first-child{{text-align:left}}.u{{margin:.6em 0}}.u "
      "b{{font-weight:600}}"
      ".p{{display:inline-block;margin:0 .15em;text-align:center;vertical-align:top}}"
      ".p "
      "i{{display:block;font-style:normal;min-height:1.5em}}.S{{background:#ffe08a}}.D{{background:"
      "#ffb3b3}}"
      ".I{{background:#b3d9ff}}</style></head><body>\n<h1>{0}</h1>\n",
      escape_html(title));
  out +=
      "<table><tr><th>test set</th><th>metric</th><th>rate %</th><th>95 "
      "%</th><th>S</th><th>D</th><th>I</th>"
      "<th>tokens</th><th>utterances</th><th>not decoded</th></tr>\n";
  for (const auto& [name, row] : named_rows()) {
    const EditCounts& c = row->metric->total();
    const Confidence confidence = row->metric->confidence();
    out += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{:.2f}</td><td>{:.2f} to "
        "{:.2f}</td><td>{}</td><td>{}</td><td>{}</td>"
        "<td>{}</td><td>{}</td><td>{}</td></tr>\n",
        escape_html(row->test_set), short_name(name, row->class_path, *row->metric), percent(c),
        confidence.low, confidence.high, c.substitutions, c.deletions, c.insertions,
        c.reference_size(), row->metric->utterances().size(), row->num_undecoded);
  }
  out +=
      "</table>\n<p>Upper line: reference, lower line: hypothesis. <span "
      "class=\"S\">substitution</span> "
      "<span class=\"D\">deletion</span> <span class=\"I\">insertion</span></p>\n";
  for (const auto& [name, row] : named_rows()) {
    const auto wrong = worst_first(*row->metric);
    out += fmt::format("<h2>{}: {}</h2>\n<p>{} of {} utterances have errors{}</p>\n",
                       escape_html(row->test_set), short_name(name, row->class_path, *row->metric),
                       wrong.size(), row->metric->utterances().size(),
                       wrong.empty() ? "." : "; the worst come first.");
    for (const ScoredUtterance* utterance : wrong)
      out +=
          error_html(*utterance, audio ? audio(row->test_set, utterance->who.id) : std::string());
  }
  out += "</body></html>\n";
  return out;
}

}  // namespace tutti::speech
