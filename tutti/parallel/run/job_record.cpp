#include "tutti/parallel/run/job_record.h"

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/file_trust.h"
#include "tutti/core/json.h"
#include "tutti/core/log.h"

namespace tutti::parallel {

std::filesystem::path JobRecord::path(const std::filesystem::path& run_folder) {
  return run_folder / ".tutti" / "jobs.json";
}

JobRecord JobRecord::read(const std::filesystem::path& run_folder) try {
  std::error_code none;  // absent is the usual answer
  if (!std::filesystem::exists(path(run_folder), none)) return {};
  const Json json = parse_json(read_trusted_file(path(run_folder), run_folder / ".tutti"),
                               path(run_folder).string());
  return {parallel_settings_from(json.at("settings")), json.value("life", ""),
          json.value("jobs", std::vector<std::string>{})};
} catch (const std::exception& error) {
  log::warning("{}: {}", path(run_folder).string(), error.what());
  return {};
}

void JobRecord::write(const std::filesystem::path& run_folder) const {
  const Json json = {{"settings", to_json(settings)}, {"life", life}, {"jobs", job_ids}};
  write_file_atomic(path(run_folder), json.dump() + "\n", 0600);
}

LeftOver JobRecord::end_jobs(const std::filesystem::path& run_folder, CommandRunner& runner) const {
  WorkerLaunch launch;
  launch.run_folder = run_folder;
  launch.life = life;
  return make_backend(settings, launch, runner)->cancel_left_over(life, job_ids);
}

LeftOver cancel_left_over(const std::filesystem::path& run_folder, CommandRunner& runner) {
  const JobRecord record = JobRecord::read(run_folder);
  if (record.life.empty()) return {};
  LeftOver jobs = record.end_jobs(run_folder, runner);
  std::error_code ignored;  // it would only be read once more
  if (jobs.all_gone()) std::filesystem::remove(JobRecord::path(run_folder), ignored);
  return jobs;
}

}  // namespace tutti::parallel
