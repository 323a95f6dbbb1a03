#include "tutti/parallel/worker/command_template.h"

#include <algorithm>
#include <array>
#include <optional>

#include "tutti/core/error.h"
#include "tutti/core/text.h"

namespace tutti::parallel {
namespace {

constexpr std::string_view kItemVariable = "TUTTI_ITEM";
constexpr std::string_view kIndexVariable = "TUTTI_ITEM_INDEX";
constexpr std::string_view kIndexPlace = "{index}";
constexpr std::size_t kLargestVariable = 64 << 10;  // exported unasked; the system takes 128 KiB

std::string_view last_part(std::string_view item) {
  const auto slash = item.rfind('/');
  return slash == std::string_view::npos ? item : item.substr(slash + 1);
}

std::string_view folder_of(std::string_view item) {
  const auto slash = item.rfind('/');
  if (slash == std::string_view::npos) return ".";
  return slash == 0 ? "/" : item.substr(0, slash);
}

std::string_view without_extension(std::string_view item) {
  const std::string_view name = last_part(item);
  const auto dot = name.rfind('.');
  if (dot == std::string_view::npos || dot == 0) return item;
  return item.substr(0, item.size() - (name.size() - dot));
}

struct Place {
  std::string_view text;
  std::string_view variable;
  std::string_view (*of)(std::string_view item);
};
constexpr std::array<Place, 5> kPlaces = {
    Place{"{}", kItemVariable, [](std::string_view item) { return item; }},
    Place{"{.}", "TUTTI_ITEM_STEM", without_extension}, Place{"{/}", "TUTTI_ITEM_NAME", last_part},
    Place{"{//}", "TUTTI_ITEM_FOLDER", folder_of},
    Place{"{/.}", "TUTTI_ITEM_NAME_STEM",
          [](std::string_view item) { return without_extension(last_part(item)); }}};

const Place* place_at(std::string_view text) {
  for (const Place& place : kPlaces)
    if (text.starts_with(place.text)) return &place;
  return nullptr;
}

bool has_place(std::string_view text) {
  for (std::size_t at = text.find('{'); at != text.npos; at = text.find('{', at + 1))
    if (place_at(text.substr(at)) != nullptr) return true;
  return false;
}

// All places in one pass: an item may look like a place itself.
std::string fill(std::string_view text, std::string_view item, const std::string& index,
                 bool only_index) {
  std::string out;
  while (!text.empty()) {
    if (text.starts_with(kIndexPlace)) {
      out += index;
      text.remove_prefix(kIndexPlace.size());
    } else if (const Place* place = only_index ? nullptr : place_at(text)) {
      out += place->of(item);
      text.remove_prefix(place->text.size());
    } else {
      out.push_back(text.front());
      text.remove_prefix(1);
    }
  }
  return out;
}

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> list) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

bool is_shell(std::string_view word) {
  return is_one_of(last_part(word), {"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh"});
}

bool is_strange_shell(std::string_view word) {
  return is_one_of(last_part(word), {"csh", "tcsh", "fish", "xonsh", "nu"});
}

// These have a shell of their own read the text behind -c or --command.
bool has_own_shell(std::string_view word) {
  return is_one_of(last_part(word), {"su", "runuser", "flock", "script", "sg", "newgrp"});
}

// These make one line of their arguments, for a shell here or on another host.
bool joins_its_arguments(std::string_view word) {
  return is_one_of(last_part(word), {"ssh", "rsh", "pdsh", "mosh", "watch", "parallel"});
}

// The program among `words` that would do so with what comes next; empty: none. To search for the
// word "ssh" or to name it to rsync is no call of it.
std::string joining_program(const std::vector<std::string>& words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (is_one_of(last_part(words[i]), {"grep", "egrep", "fgrep", "rg", "echo", "printf"}))
      return "";
    if (i > 0 && is_one_of(words[i - 1], {"-e", "--rsh"})) continue;
    if (joins_its_arguments(words[i])) return std::string(last_part(words[i]));
  }
  return "";
}

// `word` as far as it is known: an option with a script in it, for one of `before`?
bool is_script_option(const std::vector<std::string>& before, std::string_view word) {
  return word.starts_with('-') && std::any_of(before.begin(), before.end(), has_own_shell);
}

// `words` so far: is what comes next the text that a shell among them will run?
bool next_is_script(const std::vector<std::string>& words, bool& strange) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    const bool script_next =
        words.size() > i + 1 && (words.back() == "--command" ||
                                 (words.back().starts_with('-') &&
                                  !words.back().starts_with("--") && words.back().ends_with('c')));
    if (has_own_shell(words[i]) && script_next) return strange = true;
    if (!is_shell(words[i]) && !is_strange_shell(words[i])) continue;
    for (std::size_t k = i + 1; k < words.size(); ++k) {
      const std::string& option = words[k];
      if (option.size() < 2 || (option[0] != '-' && option[0] != '+')) break;  // its script file
      if (is_one_of(option, {"-o", "+o", "-O", "+O", "--rcfile", "--init-file"})) {
        ++k;
        continue;
      }
      if (!option.starts_with("--") && option.find('c') != option.npos) {
        strange = is_strange_shell(words[i]);
        return k + 1 == words.size();
      }
    }
  }
  return false;
}

constexpr char kUseTheVariable[] =
    "the item is also in the variable TUTTI_ITEM: write \"$TUTTI_ITEM\" there, or put the command "
    "into a script and give it {} as an argument";

// A variable would be evaluated there just as well.
constexpr char kUseAProgram[] =
    "give the item to a program that reads it as text or number, as in: expr {} + 1 , or put the "
    "command into a script that checks its argument first, and give it {}";
constexpr char kUseAScript[] =
    "put the command into a script and give it {} as an argument; {.}, {/} and {//} are parts of "
    "the item";

[[noreturn]] void refuse(std::string_view line, const std::string& why, const std::string& fix) {
  throw ConfigError("map: the item cannot be put safely into `" + std::string(line) + "`: " + why,
                    fix);
}

[[noreturn]] void refuse_joining(std::string_view line, const std::string& program) {
  if (is_one_of(program, {"watch", "parallel"}))
    refuse(line,
           program +
               " makes one line of its arguments, and a shell would read the item as a "
               "command",
           kUseAScript);
  refuse(line, "the shell on the other host would read the item as a command",
         "send it through the connection: printf '%s\\0' {} | ssh HOST xargs -0 COMMAND ; a number "
         "may stand there as {index}");
}

// Reads a shell line as a shell does, as far as quoting goes, and replaces places as it passes them.
class Rewriter {
 public:
  Rewriter(std::string_view line, std::vector<std::string_view>& variables, bool numbers)
      : line_(line), variables_(variables), numbers_(numbers) {}

  std::string run() {
    code('\0', false);
    if (at_ < line_.size()) refuse(line_, "it has a ')' too many", "check its quotes and brackets");
    read_documents();
    if (!documents_.empty()) refuse(line_, "a here-document has no end", "check its last line");
    return std::move(out_);
  }

 private:
  // One simple command as far as it has been read.
  struct SimpleCommand {
    std::vector<std::string> words;
    std::string word;
    bool in_word = false;
    bool has_place = false;
  };
  struct Document {
    std::string end;
    bool expands = true;
    bool tabs = false;
  };

  bool done() const { return at_ >= line_.size(); }
  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < line_.size() ? line_[at_ + ahead] : '\0';
  }
  std::string_view rest() const { return line_.substr(at_); }
  void copy(std::size_t count = 1) {
    out_ += line_.substr(at_, count);
    at_ += std::min(count, line_.size() - at_);
  }

  void put_reference(const Place& place, const char* before, const char* after) {
    if (std::find(variables_.begin(), variables_.end(), place.variable) == variables_.end())
      variables_.push_back(place.variable);
    // The question mark: where the variable did not come through (sudo, containers), an error and
    // not an empty word.
    out_ += before + ("${" + std::string(place.variable)) + "?}" + after;
    at_ += place.text.size();
  }

  static void end_word(SimpleCommand& command) {
    if (command.in_word) command.words.push_back(std::move(command.word));
    command.word.clear();
    command.in_word = false;
  }

  static std::size_t first_word(const std::vector<std::string>& words) {
    std::size_t i = 0;
    while (i < words.size() &&
           (is_one_of(words[i], {"if", "then", "else", "elif", "do", "while", "until", "!", "{",
                                 "time", "command", "builtin", "exec", "env", "nice", "nohup"}) ||
            words[i].find('=') != std::string::npos))
      ++i;
    return i;
  }

  void end_command(SimpleCommand& command) const {
    end_word(command);
    const std::size_t first = first_word(command.words);
    if (command.has_place && !numbers_ && first < command.words.size()) {
      const std::string& name = command.words[first];
      const bool tests = is_one_of(name, {"[[", "[", "test"});
      for (const std::string& word : command.words) {
        const bool counts = is_one_of(word, {"-eq", "-ne", "-lt", "-le", "-gt", "-ge"});
        if ((name == "[[" && counts) || (tests && word == "-v"))
          refuse(
              line_, name + " ... " + word + " evaluates its operands, and these could be commands",
              "compare as text, or look at the number first: case {} in *[!0-9]*) exit 1;; esac");
      }
    }
    command = SimpleCommand{};
  }

  // A place in the current word: may it be here?
  void check_place(SimpleCommand& command, bool in_single_quotes) const {
    command.has_place = true;
    const std::size_t first = first_word(command.words);
    const std::string name = first < command.words.size() ? command.words[first] : "";
    bool strange = false;
    const bool script = next_is_script(command.words, strange) ||
                        is_script_option(command.words, command.word) ||
                        is_one_of(name, {"eval", "trap"});
    strange = strange || is_script_option(command.words, command.word);
    if (script && (strange || !in_single_quotes))
      refuse(line_, "another shell would read the item as a command",
             strange ? kUseTheVariable
                     : "put single quotes around the inner command, or: " +
                           std::string(kUseTheVariable));
    if (name == "let" && !numbers_)
      refuse(line_, "let evaluates the item, and it could be a command", kUseAProgram);
    if (const std::string program = joining_program(command.words); !program.empty())
      refuse_joining(line_, program);
  }

  bool is_nested_script(const SimpleCommand& command) const {
    bool strange = false;
    const std::size_t first = first_word(command.words);
    const std::string name = first < command.words.size() ? command.words[first] : "";
    return next_is_script(command.words, strange) || is_one_of(name, {"eval", "trap"});
  }

  // Commands up to `end`: ')' of a substitution, '`', or '\0' for the end of the line.
  void code(char end, bool in_double_quotes) {
    SimpleCommand command;
    int depth = 0;
    int cases = 0;
    while (!done()) {
      const char c = peek();
      if (c == '`' && end == '`') break;
      if (c == ')') {
        note_case(command, cases);
        end_command(command);
        if (depth > 0)
          --depth;
        else if (cases == 0 && end == ')')
          break;
        else if (cases == 0)
          return;  // one too many
        copy();
      } else if (const Place* place = place_at(rest())) {
        check_place(command, false);
        command.in_word = true;
        put_reference(*place, "\"", "\"");
      } else if (c == '\\') {
        if (end == '`' && (peek(1) == '`' || (in_double_quotes && peek(1) == '"')))
          refuse(line_, "quotes inside of backquotes are hard to follow", "write $(...) instead");
        const Place* literal = place_at(rest().substr(1));
        command.in_word = true;
        command.word += rest().substr(1, literal != nullptr ? literal->text.size() : 1);
        copy(1 + (literal != nullptr ? literal->text.size() : 1));
      } else if (c == '\'') {
        single_quoted(command);
      } else if (c == '"') {
        double_quoted(command);
      } else if (c == '`') {
        copy();
        code('`', false);
        close('`');
        command.in_word = true;
      } else if (c == '$') {
        dollar(command, false);
      } else if (c == '(' && peek(1) == '(') {
        arithmetic("((");
      } else if (c == '(') {
        end_command(command);
        ++depth;
        copy();
      } else if (c == '#' && !command.in_word) {
        while (!done() && peek() != '\n' && !(end == '`' && peek() == '`')) copy();
      } else if (c == '<' && peek(1) == '<' && peek(2) != '<') {
        end_word(command);
        begin_document();
      } else if (c == '\n') {
        note_case(command, cases);
        end_command(command);
        copy();
        read_documents();
      } else if (c == ';' || c == '&' || c == '|') {
        note_case(command, cases);
        end_command(command);
        copy();
      } else if (c == ' ' || c == '\t' || c == '<' || c == '>') {
        note_case(command, cases);
        end_word(command);
        copy(c == '<' && rest().starts_with("<<<") ? 3 : 1);
      } else {
        command.in_word = true;
        command.word.push_back(c);
        copy();
      }
    }
    note_case(command, cases);
    end_command(command);
    if (done() && end != '\0') refuse(line_, "a substitution has no end", "check its brackets");
  }

  // In `case x in a) ...;; esac` a ')' closes nothing.
  static void note_case(const SimpleCommand& command, int& cases) {
    if (command.word == "case" && first_word(command.words) == command.words.size()) ++cases;
    if (command.word == "esac" && cases > 0) --cases;
  }

  void close(char end) {
    if (peek() != end) refuse(line_, "its quotes do not match", "check them");
    copy();
  }

  void single_quoted(SimpleCommand& command) {
    const bool script = is_nested_script(command);
    const auto end = line_.find('\'', at_ + 1);
    if (end == line_.npos) refuse(line_, "a single quote has no partner", "check its quotes");
    const std::string_view inside = line_.substr(at_ + 1, end - at_ - 1);
    command.in_word = true;
    command.word += inside;
    if (!has_place(inside)) return copy(inside.size() + 2);
    check_place(command, true);
    if (script) {  // it has no single quotes, and so it will have none
      out_ += "'" + with_references(inside, variables_, numbers_) + "'";
      at_ = end + 1;
      return;
    }
    copy();
    while (at_ < end) {
      if (const Place* place = place_at(rest()))
        put_reference(*place, "'\"", "\"'");
      else
        copy();
    }
    copy();
  }

  void double_quoted(SimpleCommand& command) {
    copy();
    command.in_word = true;
    while (!done() && peek() != '"') {
      if (const Place* place = place_at(rest())) {
        check_place(command, false);
        put_reference(*place, "", "");
      } else if (peek() == '\\' && place_at(rest().substr(1)) != nullptr) {
        out_ += "\\\\";  // it was a backslash of its own
        ++at_;
      } else if (peek() == '\\') {
        command.word += rest().substr(1, 1);
        copy(2);
      } else if (peek() == '`') {
        copy();
        code('`', true);
        close('`');
      } else if (peek() == '$') {
        dollar(command, true);
      } else {
        command.word.push_back(peek());
        copy();
      }
    }
    close('"');
  }

  void dollar(SimpleCommand& command, bool in_double_quotes) {
    command.in_word = true;
    const Place* place = place_at(rest().substr(1));
    if (place != nullptr)
      refuse(line_, "'$" + std::string(place->text) + "' has no meaning", kUseTheVariable);
    if (rest().starts_with("$((")) return arithmetic("$((");
    if (peek(1) == '[') return bracket();
    if (peek(1) == '(') {
      copy(2);
      code(')', false);
      return close(')');
    }
    if (peek(1) == '{') return parameter();
    if (peek(1) == '\'' && !in_double_quotes && has_place(rest()))
      refuse(line_, "shells do not agree on what $'...' means", "use printf, or plain quotes");
    command.word.push_back('$');
    copy();
  }

  // Text that is no place for a reference, up to where its brackets are closed.
  // `evaluates`: but numbers may stand there.
  void without_places(std::size_t begin, char open, char close_with, const char* what,
                      const char* fix, bool evaluates) {
    std::size_t end = begin;
    int depth = 0;
    for (; end < line_.size(); ++end) {
      if (line_[end] == '\\') {
        ++end;
        continue;
      }
      if (line_[end] == open) ++depth;
      if (line_[end] == close_with && --depth == 0) break;
    }
    const std::string_view inside = line_.substr(at_, end - at_);
    if (has_place(inside) && !evaluates) refuse(line_, std::string(what), fix);
    for (const std::size_t stop = std::min(end + 1, line_.size()); at_ < stop;) {
      if (const Place* place = place_at(rest()))
        put_reference(*place, "", "");
      else
        copy();
    }
  }

  void arithmetic(std::string_view begin) {
    // Two brackets may also be two subshells; then the text has no place for a reference either.
    without_places(at_ + begin.size() - 2, '(', ')',
                   "arithmetic evaluates the item, and it could be a command", kUseAProgram,
                   numbers_);
  }
  void bracket() {
    without_places(at_ + 1, '[', ']', "arithmetic evaluates the item, and it could be a command",
                   kUseAProgram, numbers_);
  }
  void parameter() {
    // A place would end the expansion, so it shows up in the text of the longest reading.
    const auto end = line_.find('}', at_ + 2);
    if (end != line_.npos && has_place(line_.substr(at_ + 1, end - at_)))
      refuse(line_, "it stands inside of ${...}", kUseAScript);
    without_places(at_ + 1, '{', '}', "it stands inside of ${...}", kUseAScript, false);
  }

  void begin_document() {
    copy(2);
    Document document;
    if (peek() == '-') {
      document.tabs = true;
      copy();
    }
    while (peek() == ' ' || peek() == '\t') copy();
    while (!done() && std::string_view(" \t\n;&|<>()").find(peek()) == std::string_view::npos) {
      const char c = peek();
      if (c == '\'' || c == '"' || c == '\\') {
        document.expands = false;
        const auto end = c == '\\' ? at_ + 2 : line_.find(c, at_ + 1);
        if (end == line_.npos) refuse(line_, "its quotes do not match", "check them");
        document.end += line_.substr(at_ + 1, end - at_ - 1);
        copy((c == '\\' ? end : end + 1) - at_);
      } else {
        document.end.push_back(c);
        copy();
      }
    }
    documents_.push_back(std::move(document));
  }

  void read_documents() {
    while (!documents_.empty() && !done()) {
      const Document document = documents_.front();
      documents_.erase(documents_.begin());
      bool ended = false;
      while (!done() && !ended) {
        const std::string_view line = rest().substr(0, rest().find('\n'));
        std::string_view text = line;
        while (document.tabs && text.starts_with('\t')) text.remove_prefix(1);
        ended = text == document.end;
        document_line(line, document, ended);
        if (!done()) copy();  // its newline
      }
    }
  }

  void document_line(std::string_view line, const Document& document, bool is_end) {
    const std::size_t end = at_ + line.size();
    if (is_end || !has_place(line)) return copy(line.size());
    if (!document.expands)
      refuse(line_, "the here-document's end is quoted, so that nothing in it is replaced",
             "write <<" + document.end + " without quotes");
    if (line.find("$(") != line.npos || line.find('`') != line.npos || line.find("${") != line.npos)
      refuse(line_, "a here-document with commands in the item's line is hard to follow",
             kUseTheVariable);
    while (at_ < end) {
      const Place* place = place_at(rest());
      if (place != nullptr && line_[at_ - 1] == '\\') out_ += '\\';
      if (place != nullptr)
        put_reference(*place, "", "");
      else
        copy();
    }
  }

  const std::string_view line_;
  std::vector<std::string_view>& variables_;
  const bool numbers_;
  std::size_t at_ = 0;
  std::string out_;
  std::vector<Document> documents_;  // begun on this line, to be read at its end
};

}  // namespace

std::string with_references(std::string_view line, std::vector<std::string_view>& variables,
                            bool numbers) {
  return has_place(line) ? Rewriter(line, variables, numbers).run() : std::string(line);
}

bool uses_item(const std::vector<std::string>& words) {
  return std::any_of(words.begin(), words.end(), [](const std::string& word) {
    return has_place(word) || word.find(kIndexPlace) != word.npos ||
           word.find(kItemVariable) != word.npos;  // which all of them begin with
  });
}

CommandTemplate::CommandTemplate(std::vector<std::string> words, bool items_are_numbers)
    : typed_(std::move(words)), words_(typed_) {
  const bool shell_line =
      words_.size() == 1 && words_[0].find_first_of(" \t\n") != std::string::npos;
  if (shell_line) words_.insert(words_.begin(), {"/bin/sh", "-c"});
  is_script_.assign(words_.size(), false);
  for (std::size_t i = 0; i < words_.size(); ++i) {
    if (!has_place(words_[i])) continue;
    const std::vector<std::string> before(words_.begin(),
                                          words_.begin() + static_cast<std::ptrdiff_t>(i));
    bool strange = false;
    is_script_[i] = next_is_script(before, strange);
    const std::string whole = join(words_, " ");
    if (strange || is_script_option(before, words_[i]))
      refuse(whole, "a shell that is not ours to follow would read the item as a command",
             kUseTheVariable);
    if (is_script_[i])
      words_[i] = with_references(words_[i], variables_, items_are_numbers);
    else if (const std::string program = joining_program(before); !program.empty())
      refuse_joining(whole, program);
  }
}

Command CommandTemplate::for_item(std::string_view item, std::uint64_t index) const {
  Command command;
  const std::string number = std::to_string(index);
  for (std::size_t i = 0; i < words_.size(); ++i)
    command.argv.push_back(fill(words_[i], item, number, is_script_[i]));
  command.env[std::string(kIndexVariable)] = number;
  if (item.size() <= kLargestVariable) command.env[std::string(kItemVariable)] = item;
  for (const Place& place : kPlaces)
    if (std::find(variables_.begin(), variables_.end(), place.variable) != variables_.end())
      command.env[std::string(place.variable)] = place.of(item);
  return command;
}

std::string CommandTemplate::describe(std::string_view item, std::uint64_t index) const {
  if (words_.size() != typed_.size()) return typed_[0];  // a line for the shell
  std::vector<std::string> words;
  for (std::size_t i = 0; i < typed_.size(); ++i)
    words.push_back(shell_quote(
        is_script_[i] ? typed_[i] : fill(typed_[i], item, std::to_string(index), false)));
  return join(words, " ");
}

}  // namespace tutti::parallel
