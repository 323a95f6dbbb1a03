#include "tutti/parallel/run/job_record.h"

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/log.h"

namespace tutti::parallel {

std::filesystem::path JobRecord::path(const std::filesystem::path& run_folder) {
  return run_folder / ".tutti" / "jobs.json";
}

JobRecord JobRecord::read(const std::filesystem::path& run_folder) try {
  std::error_code none;  // absent is the usual answer
  if (!std::filesystem::exists(path(run_folder), none)) return {};
  const Json json = parse_json(read_file(path(run_folder)), path(run_folder).string());
  return {json.value("env", ""), json.value("life", ""),
          json.value("jobs", std::vector<std::string>{})};
} catch (const std::exception& error) {
  log::warning("{}: {}", path(run_folder).string(), error.what());
  return {};
}

void JobRecord::write(const std::filesystem::path& run_folder) const {
  const Json json = {{"env", env}, {"life", life}, {"jobs", job_ids}};
  write_file_atomic(path(run_folder), json.dump() + "\n", 0600);
}

}  // namespace tutti::parallel
