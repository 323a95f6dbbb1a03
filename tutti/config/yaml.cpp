// YAML text to a tree, over yaml-cpp's events rather than its nodes: the nodes drop key positions,
// accept duplicate keys, ignore `<<` and expand aliases without a bound.
#include <fmt/format.h>
#include <yaml-cpp/anchor.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <cctype>
#include <sstream>
#include <unordered_map>

#include "tutti/config/limits.h"
#include "tutti/config/load.h"
#include "tutti/config/problem.h"
#include "tutti/core/text.h"

namespace tutti::config {
namespace {

using FileName = std::shared_ptr<const std::string>;

// Ends the parse; what was wrong is in `problems` by then.
struct ParseStopped {};

Mark to_mark(const YAML::Mark& mark, const FileName& file) {
  return mark.is_null() ? Mark{file, 0, 0} : Mark{file, mark.line + 1, mark.column + 1};
}

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(FileName file, std::string_view text, Problems& problems)
      : file_(std::move(file)), lines_(split(text, '\n')), problems_(problems) {}

  ValuePtr take_root() { return std::move(root_); }
  void start_again() { root_ = nullptr, anchors_.clear(); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (expects_key()) stop(mark, "a key must be text, got null", "put the key in quotes");
    place(make(Kind::kNull, mark), anchor, 1);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    if (expects_key()) return take_key(mark, tag, text);
    auto value = make(Kind::kScalar, mark);
    value->quoted = is_string_tag(mark, tag);
    if (!value->quoted) refuse_glued(mark, text);
    value->text = text;
    place(std::move(value), anchor, 1);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end())
      stop(mark, "the alias stands inside what it refers to", "use a second anchor");
    const auto& [value, size] = found->second;
    if (expects_key()) {
      if (value->kind != Kind::kScalar)
        stop(mark, "a key must be a single value, got an alias of a list or map");
      return take_key(mark, "?", value->text);
    }
    if ((num_aliased_ += size) > kMaxExpandedValues) {
      stop(mark, fmt::format("aliases expand to more than {} values", kMaxExpandedValues),
           "write less with anchors; a config this large is most likely a mistake or an attack");
    }
    place(value, YAML::NullAnchor, size);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(Kind::kList, mark, tag, anchor);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(Kind::kMap, mark, tag, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override {
    apply_merges(frames_.back());
    close();
  }

 private:
  struct Frame {
    std::shared_ptr<Value> value;
    YAML::anchor_t anchor = YAML::NullAnchor;
    std::size_t size = 1;  // values in the subtree, aliases counted at every use
    bool has_key = false;
    bool key_is_merge = false;
    std::vector<ValuePtr> merges;                         // the values of `<<`
    std::unordered_map<std::string, std::size_t> places;  // key -> index in value->map
  };

  [[noreturn]] void stop(const YAML::Mark& mark, std::string what, std::string fix = {}) {
    problems_.add({to_mark(mark, file_), current_path(), std::move(what), std::move(fix)});
    throw ParseStopped{};
  }

  std::string current_path() const {
    std::string path;
    for (const Frame& frame : frames_) {
      std::string step;
      if (frame.value->kind == Kind::kList)
        step = std::to_string(frame.value->list.size());
      else if (frame.has_key && !frame.key_is_merge)
        step = frame.value->map.back().first;
      if (!step.empty()) path += (path.empty() ? "" : ".") + step;
    }
    return path;
  }

  std::shared_ptr<Value> make(Kind kind, const YAML::Mark& mark) {
    auto value = std::make_shared<Value>();
    value->kind = kind;
    value->mark = to_mark(mark, file_);
    return value;
  }

  bool expects_key() const {
    return !frames_.empty() && frames_.back().value->kind == Kind::kMap && !frames_.back().has_key;
  }

  // `!` marks quotes or a block scalar, `?` a plain one; `!!str 5` is a string as if quoted.
  bool is_string_tag(const YAML::Mark& mark, const std::string& tag) {
    if (tag == "!" || tag == "tag:yaml.org,2002:str") return true;
    if (!tag.empty() && tag != "?" && tag != "tag:yaml.org,2002:int" &&
        tag != "tag:yaml.org,2002:float" && tag != "tag:yaml.org,2002:bool" &&
        tag != "tag:yaml.org,2002:null") {
      stop(mark, fmt::format("the YAML tag '{}' has no meaning here", tag), "remove the tag");
    }
    return false;
  }

  void take_key(const YAML::Mark& mark, const std::string& tag, const std::string& key) {
    Frame& frame = frames_.back();
    frame.has_key = true;
    frame.key_is_merge = key == "<<" && tag == "?";
    if (frame.key_is_merge) return;
    const auto [found, is_new] = frame.places.emplace(key, frame.value->map.size());
    if (!is_new) {
      const Mark first = frame.value->key_marks[found->second];
      frame.has_key = false;
      std::string path = current_path();
      frame.has_key = true;
      path += (path.empty() ? "" : ".") + key;
      problems_.add({to_mark(mark, file_), path,
                     fmt::format("duplicate key, first written at line {}", first.line),
                     "keep one of the two"});
    }
    frame.value->map.emplace_back(key, nullptr);
    frame.value->key_marks.push_back(to_mark(mark, file_));
  }

  // `lr:0.005` on a line of its own is the end of the value before it, or a value itself: YAML wants a blank
  // after the colon of a key.
  void refuse_glued(const YAML::Mark& mark, const std::string& text) {
    const std::string_view last = std::string_view(text).substr(text.rfind(' ') + 1);
    if (mark.is_null() || unglued(last).empty()) return;
    const auto line = static_cast<std::size_t>(mark.line) + (last.size() < text.size() ? 1 : 0);
    if (line >= lines_.size() || trim(lines_[line]) != last) return;
    YAML::Mark at = mark;
    at.line = static_cast<int>(line);
    at.column = static_cast<int>(lines_[line].find(last));
    stop(at, fmt::format("got '{}', which has no blank after the colon", last),
         fmt::format("write {}, or put it in quotes if it is a text", unglued(last)));
  }

  void open(Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (expects_key())
      stop(mark, "a key must be a single value, got a list or map",
           "close the bracket before this, or put the key in quotes");
    if (frames_.size() >= kMaxDepth) {
      stop(mark, fmt::format("nested more than {} levels deep", kMaxDepth),
           "flatten this part of the config");
    }
    if (!tag.empty() && tag != "?" && tag != "!" && tag != "tag:yaml.org,2002:map" &&
        tag != "tag:yaml.org,2002:seq")
      stop(mark, fmt::format("the YAML tag '{}' has no meaning here", tag), "remove the tag");
    frames_.emplace_back();
    frames_.back().value = make(kind, mark);
    frames_.back().anchor = anchor;
  }

  void close() {
    Frame frame = std::move(frames_.back());
    frames_.pop_back();
    place(std::move(frame.value), frame.anchor, frame.size);
  }

  void place(ValuePtr value, YAML::anchor_t anchor, std::size_t size) {
    if (anchor != YAML::NullAnchor) anchors_[anchor] = {value, size};
    if (frames_.empty()) {
      root_ = std::move(value);
      return;
    }
    Frame& frame = frames_.back();
    frame.size += size;
    if (frame.value->kind == Kind::kList) {
      frame.value->list.push_back(std::move(value));
      return;
    }
    frame.has_key = false;
    if (frame.key_is_merge)
      frame.merges.push_back(std::move(value));
    else
      frame.value->map.back().second = std::move(value);
  }

  // `<<: *base` or `<<: [*first, *second]`: the map's own keys win, then earlier maps over later.
  void apply_merges(Frame& frame) {
    std::vector<ValuePtr> sources;
    for (const ValuePtr& merge : frame.merges) {
      if (merge->kind == Kind::kList)
        sources.insert(sources.end(), merge->list.begin(), merge->list.end());
      else
        sources.push_back(merge);
    }
    for (const ValuePtr& source : sources) {
      if (source->kind != Kind::kMap) {
        problems_.add(
            {source->mark,
             current_path(),
             "got " + Node(source).describe_value() + " after <<, expected a map or a list of maps",
             {}});
        continue;
      }
      for (std::size_t i = 0; i < source->map.size(); ++i) {
        if (!frame.places.emplace(source->map[i].first, frame.value->map.size()).second) continue;
        frame.value->map.push_back(source->map[i]);
        frame.value->key_marks.push_back(source->key_marks[i]);
      }
    }
  }

  const FileName file_;
  const std::vector<std::string> lines_;
  Problems& problems_;
  std::vector<Frame> frames_;
  std::unordered_map<YAML::anchor_t, std::pair<ValuePtr, std::size_t>> anchors_;
  std::size_t num_aliased_ = 0;
  ValuePtr root_;
};

// The line (from 1) of the last tab in the indentation up to line `last`; 0: none. yaml-cpp only says that a
// value stands where none may be, a line or more after the tab.
int tab_before(std::string_view text, int last) {
  int found = 0;
  int number = 1;
  for (std::size_t begin = 0; begin < text.size() && number <= last; ++number) {
    const std::string_view line = text.substr(begin, text.find('\n', begin) - begin);
    const std::size_t indent = line.find_first_not_of(" \t");
    if (line.substr(0, indent).find('\t') != std::string_view::npos &&
        indent != std::string_view::npos)
      found = number;
    begin += line.size() + 1;
  }
  return found;
}

// What to write when the line (from 0) or the one before has a key that YAML cannot see as one.
std::string glued_at(std::string_view text, int line) {
  const auto lines = split(text, '\n');
  for (const int at : {line, line - 1})
    if (at >= 0 && at < static_cast<int>(lines.size()))
      if (const std::string fix = unglued(trim(lines[static_cast<std::size_t>(at)])); !fix.empty())
        return "a blank must follow the colon: " + fix;
  return {};
}

// yaml-cpp says what it missed, not what people mostly did.
std::string fix_for(std::string_view text, const YAML::ParserException& e) {
  if (std::string glued = glued_at(text, e.mark.line); !glued.empty()) return glued;
  const std::string_view message = e.msg;
  if (message.find("flow") != std::string_view::npos)
    return "close each [ with ] and each { with }, and put commas between the values";
  if (message == YAML::ErrorMsg::UNKNOWN_TOKEN)
    return "put quotes around a value that begins with @, % or `";
  if (message.starts_with(YAML::ErrorMsg::UNKNOWN_ANCHOR))  // yaml-cpp 0.8 adds the name
    return "write &NAME before the first use of *NAME, or quotes around a value that begins with *";
  if (message == YAML::ErrorMsg::EOF_IN_SCALAR) return "close the quotes";
  const auto lines = split(text, '\n');
  const auto indent_of = [&](std::size_t line) { return lines[line].find_first_not_of(' '); };
  const auto line = static_cast<std::size_t>(std::max(e.mark.line, 0));
  for (std::size_t before = std::min(line, lines.size()); before-- > 0 && line < lines.size();) {
    const std::string_view words = trim(lines[before]);
    if (words.empty() || words.front() == '#') continue;
    if (indent_of(before) == indent_of(line)) break;
    return fmt::format(
        "keys of one block begin in the same column: line {} begins in column {} and line {} in "
        "column {}",
        before + 1, indent_of(before) + 1, line + 1, indent_of(line) + 1);
  }
  return "put quotes around a value with a colon and a blank in it, and write each key as KEY: "
         "VALUE on a line of its own";
}

}  // namespace

std::string unglued(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos || colon == 0 || colon + 1 >= text.size()) return {};
  const std::string_view key = text.substr(0, colon), value = text.substr(colon + 1);
  const bool is_name = std::all_of(key.begin(), key.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  });
  // a:b is a key and its value; 08:00, c:/d and http://e are not.
  if (!is_name || std::isdigit(static_cast<unsigned char>(key.front())) || value.front() == ' ' ||
      value.front() == '/' || value.front() == ':')
    return {};
  return fmt::format("{}: {}", key, value);
}

Node parse_yaml(std::string_view text, const std::string& name, Problems& problems) {
  const auto file = std::make_shared<const std::string>(name);
  TreeBuilder builder(file, text, problems);
  ValuePtr root;
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    parser.HandleNextDocument(builder);
    root = builder.take_root();
    builder.start_again();
    if (parser.HandleNextDocument(builder)) {
      const ValuePtr second = builder.take_root();
      problems.add({second ? second->mark : Mark{file, 0, 0}, "",
                    "a second YAML document in one file", "keep one document per file"});
    }
  } catch (const YAML::ParserException& e) {
    const int tab = tab_before(text, e.mark.line + 1);
    if (tab > 0)
      problems.add({Mark{file, tab, 1}, "", "a tab in the indentation: YAML allows spaces only",
                    "replace the tabs of this file with spaces: expand -t 2 FILE"});
    else
      problems.add({to_mark(e.mark, file), "", "not valid YAML: " + e.msg, fix_for(text, e)});
  } catch (const ParseStopped&) {
    // The reason is among the problems.
  }
  if (root) return Node(std::move(root));
  Value nothing;
  nothing.mark = {file, 1, 1};
  return Node(std::make_shared<Value>(std::move(nothing)));
}

Node parse_yaml(std::string_view text, const std::string& name) {
  Problems problems;
  Node root = parse_yaml(text, name, problems);
  problems.throw_if_any();
  return root;
}

}  // namespace tutti::config
