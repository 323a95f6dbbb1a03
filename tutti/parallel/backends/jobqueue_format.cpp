#include "tutti/parallel/backends/jobqueue_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tutti/core/text.h"
#include "tutti/core/units.h"
#include "tutti/parallel/backends/backend.h"
#include "tutti/parallel/backends/cluster.h"

namespace tutti::parallel {
namespace {

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kMiB = kKiB * 1024;
constexpr std::uint64_t kGiB = kMiB * 1024;

bool all_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Seconds that one unit of a bare number stands for.
double bare_unit(SchedulerKind kind) {
  switch (kind) {
    case SchedulerKind::kSlurm:
    case SchedulerKind::kLsf:
      return 60;
    case SchedulerKind::kOar:
      return 3600;
    default:
      return 1;
  }
}

// The number of ":" fields that this scheduler reads as hours first.
bool native_colons(SchedulerKind kind, std::size_t num_fields) {
  switch (kind) {
    case SchedulerKind::kLsf:
      return num_fields == 2;
    case SchedulerKind::kSge:
      return num_fields == 3;
    default:
      return num_fields == 2 || num_fields == 3;
  }
}

}  // namespace

std::optional<double> parse_walltime(SchedulerKind kind, std::string_view text) {
  text = trim(text);
  if (all_digits(text)) {
    const auto value = parse_duration(text);
    return value ? std::optional(*value * bare_unit(kind)) : std::nullopt;
  }
  const auto fields = split(text, ':');
  const bool hours_first = kind == SchedulerKind::kLsf || kind == SchedulerKind::kOar;
  if (fields.size() == 2 && hours_first && text.find('-') == std::string_view::npos &&
      all_digits(fields[0]) && all_digits(fields[1]))
    return parse_duration(std::string(text) + ":00");
  return parse_duration(text);
}

bool is_doubtful_walltime(SchedulerKind kind, std::string_view text) {
  text = trim(text);
  if (all_digits(text)) return true;
  const auto fields = split(text, ':');
  return fields.size() == 2 && all_digits(fields[0]) && all_digits(fields[1]) &&
         kind != SchedulerKind::kLsf && kind != SchedulerKind::kOar;
}

std::string format_walltime(SchedulerKind kind, const std::string& text, double seconds) {
  std::string raw(trim(text));
  const auto fields = split(raw, ':');
  const bool plain_fields =
      std::all_of(fields.begin(), fields.end(), [](const auto& f) { return all_digits(f); });
  if (plain_fields && (fields.size() == 1 || native_colons(kind, fields.size()))) return raw;
  const auto dash = raw.find('-');
  if (kind == SchedulerKind::kSlurm && dash != std::string::npos && all_digits(raw.substr(0, dash)))
    return raw;
  const auto whole = static_cast<std::int64_t>(std::ceil(seconds));
  if (kind == SchedulerKind::kLsf)
    return fmt::format("{:02}:{:02}", (whole + 59) / 3600, (whole + 59) / 60 % 60);
  if (kind == SchedulerKind::kSlurm && whole >= 86400)
    return fmt::format("{}-{:02}:{:02}:{:02}", whole / 86400, whole / 3600 % 24, whole / 60 % 60,
                       whole % 60);
  return fmt::format("{:02}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::uint64_t ceil_div(std::uint64_t value, std::uint64_t unit) {
  return value / unit + (value % unit != 0 ? 1 : 0);
}

std::string slurm_memory(std::uint64_t num_bytes) {
  if (num_bytes >= kGiB) return fmt::format("{}G", ceil_div(num_bytes, kGiB));
  if (num_bytes >= kMiB) return fmt::format("{}M", ceil_div(num_bytes, kMiB));
  return fmt::format("{}K", std::max<std::uint64_t>(1, ceil_div(num_bytes, kKiB)));
}

std::string pbs_memory(std::uint64_t num_bytes) {
  if (num_bytes >= 10 * kGiB) return fmt::format("{}GB", ceil_div(num_bytes, kGiB));
  if (num_bytes >= 10 * kMiB) return fmt::format("{}MB", ceil_div(num_bytes, kMiB));
  if (num_bytes >= 10 * kKiB) return fmt::format("{}kB", ceil_div(num_bytes, kKiB));
  return fmt::format("{}B", num_bytes);
}

std::string directive_name(std::string_view text) {
  text = trim(text);
  return std::string(text.substr(0, text.find_first_of(text.starts_with("--") ? " \t=" : " \t")));
}

std::vector<std::string> final_directives(const std::vector<Directive>& generated,
                                          const std::vector<std::string>& skip,
                                          const std::vector<std::string>& extras,
                                          std::vector<std::string>& unmatched) {
  // "-l walltime=..": what is set is the resource, not -l.
  const auto sets = [](const std::string& extra) {
    std::string name = directive_name(extra);
    if (name != "-l") return name;
    const auto words = split_words(extra);
    return words.size() < 2 ? name : words[1].substr(0, words[1].find('='));
  };
  std::vector<bool> matched(skip.size(), false);
  std::vector<std::string> lines;
  for (const Directive& directive : generated) {
    bool keep = true;
    for (std::size_t i = 0; i < skip.size(); ++i) {
      const bool named =
          skip[i] == directive.text || skip[i] == directive_name(directive.text) ||
          std::find(directive.keys.begin(), directive.keys.end(), skip[i]) != directive.keys.end();
      if (named) matched[i] = true, keep = false;
    }
    for (const std::string& extra : extras)
      if (std::find(directive.keys.begin(), directive.keys.end(), sets(extra)) !=
          directive.keys.end())
        keep = false;
    if (keep) lines.push_back(directive.text);
  }
  for (std::size_t i = 0; i < skip.size(); ++i)
    if (!matched[i]) unmatched.push_back(skip[i]);
  lines.insert(lines.end(), extras.begin(), extras.end());
  return lines;
}

std::string quote_expandable(std::string_view word) {
  if (word.find('$') == std::string_view::npos && !word.starts_with('~')) return shell_quote(word);
  const bool plain = word.find_first_of(" \t\"'`\\;&|<>()*?[]#") == std::string_view::npos;
  if (word.starts_with('~') && plain) return std::string(word);
  std::string out = "\"";
  for (const char c : word) {
    if (c == '"' || c == '`' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

std::string worker_lines(const JobQueueOptions& options, const WorkerLaunch& launch,
                         const JobShell& shell, int first_worker_id) {
  const int processes = options.processes;
  std::string text;
  const bool has_end = options.walltime_s > 0;
  const bool drains = has_end || options.lifetime_s;
  if (drains)
    text +=
        "tutti_started=$(date +%s)\n";  // before the prologue: the scheduler's clock runs already
  if (!shell.work_folder.empty()) text += fmt::format("cd {} || exit 1\n", shell.work_folder);
  for (const std::string& line : options.job_script_prologue)
    if (!line.empty()) text += line + "\n";

  for (const auto& [name, value] : launch.env)
    text += fmt::format("export {}={}\n", name, shell_quote(value));
  text += fmt::format("export {}={} {}={} {}={:g}\n", worker_env::kThreads, options.threads(),
                      worker_env::kMemoryLimit, options.worker_memory(), worker_env::kDeathTimeout,
                      options.death_timeout);
  if (!shell.job_id.empty())
    text += fmt::format("export {}=\"{}\"\n", worker_env::kJobId, shell.job_id);
  text += fmt::format("export OMP_NUM_THREADS={0} MKL_NUM_THREADS={0} OPENBLAS_NUM_THREADS={0}\n",
                      options.threads());
  if (options.local_directory)
    text += fmt::format("export TMPDIR={}\nmkdir -p \"$TMPDIR\" || exit 1\n",
                        quote_expandable(*options.local_directory));
  if (options.interface)
    text += fmt::format("export {}={}\n", worker_env::kInterface, shell_quote(*options.interface));
  if (shell.task_index == "0")
    text += fmt::format("tutti_first={}\n", first_worker_id);
  else
    text += fmt::format("tutti_first=$(({} + {} * {}))\n", first_worker_id, shell.task_index,
                        processes);
  if (drains) {
    // Workers of a run leave one after another, so that their replacements do not all start at
    // once.
    double margin = 0;
    double stagger = 0;
    std::string end = "tutti_started";
    if (has_end) {
      const auto walltime = static_cast<std::int64_t>(options.walltime_s);
      end = shell.end_time.empty()
                ? fmt::format("$((tutti_started + {}))", walltime)
                : fmt::format("${{{}:-$((tutti_started + {}))}}", shell.end_time, walltime);
      margin = options.drain_margin.value_or(std::clamp(options.walltime_s / 10, 10.0, 300.0));
      margin = std::min(margin, options.walltime_s * 0.9);
      stagger = std::min(margin, (options.walltime_s - margin) / 2) / 2;
    }
    if (options.lifetime_s) {
      end = fmt::format("$((tutti_started + {:.0f}))", *options.lifetime_s);
      margin = 0;
      stagger = options.lifetime_stagger_s.value_or(0);
    }
    text += fmt::format("tutti_end={}\n", end);
    text += fmt::format(
        "tutti_drain_at() {{ echo $((tutti_end - {:.0f} - {:.0f} * ($1 % 8) / 8)); }}\n", margin,
        stagger);
  }

  std::vector<std::string> words;
  for (const std::string& word : options.launcher) words.push_back(quote_expandable(word));
  const bool own_program =
      options.worker_command && (options.worker_command->find('/') != std::string::npos ||
                                 options.worker_command->find('.') == std::string::npos);
  if (own_program)  // replaces "tutti worker"; the flags that name the run stay
    for (const std::string& word : split_words(*options.worker_command))
      words.push_back(quote_expandable(word));
  for (std::size_t i = own_program ? std::min<std::size_t>(2, launch.command.size()) : 0;
       i < launch.command.size(); ++i)
    words.push_back(shell_quote(launch.command[i]));
  for (const std::string& word : options.worker_extra_args) words.push_back(quote_expandable(word));

  std::string slots;
  for (int slot = 0; slot < processes; ++slot) slots += fmt::format(" {}", slot);
  text += fmt::format("tutti_pids=\nfor tutti_slot in{}; do\n  (\n", slots);
  text += "    tutti_id=$((tutti_first + tutti_slot))\n";
  if (drains)
    text += fmt::format("    export {}=$(tutti_drain_at $tutti_id)\n", worker_env::kDrainAt);
  if (processes > 1)  // the GPUs the scheduler gave to the job are shared out among its workers
    text += fmt::format(
        "    if [ -n \"${{CUDA_VISIBLE_DEVICES:-}}\" ]; then\n"
        "      export CUDA_VISIBLE_DEVICES=$(echo \"$CUDA_VISIBLE_DEVICES\" | tr , '\\n' | awk -v "
        "s=$tutti_slot -v p={} \\\n"
        "        '{{d[NR-1]=$0}} END {{if (NR<p) print d[s%NR]; else {{for (i=s;i<NR;i+=p) o=o "
        "(o==\"\"?\"\":\",\") d[i]; print o}}}}')\n"
        "    fi\n",
        processes);
  text += fmt::format(
      "    exec {} --id $tutti_id\n  ) </dev/null >>{}/worker-$((tutti_first + tutti_slot)).log "
      "2>&1 &\n  tutti_pids=\"$tutti_pids $!\"\ndone\n",
      join(words, " "), shell_quote((launch.run_folder / "logs").string()));
  text +=
      "trap 'kill -TERM $tutti_pids 2>/dev/null' TERM INT USR1 USR2 XCPU\n"
      "tutti_status=0\n"
      "for tutti_pid in $tutti_pids; do\n"
      "  while :; do  # a signal ends wait early; the worker decides when it is done\n"
      "    wait \"$tutti_pid\"; tutti_code=$?\n"
      "    kill -0 \"$tutti_pid\" 2>/dev/null || break\n"
      "  done\n"
      "  [ \"$tutti_code\" -le \"$tutti_status\" ] || tutti_status=$tutti_code\n"
      "done\n";
  for (const std::string& line : options.job_script_epilogue)
    if (!line.empty()) text += line + "\n";
  return text + "exit \"$tutti_status\"\n";
}

}  // namespace tutti::parallel
