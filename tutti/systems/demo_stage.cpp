#include <fmt/format.h>

#include <csignal>
#include <thread>

#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/core/rounding.h"
#include "tutti/data/io/audio.h"
#include "tutti/systems/demo/server.h"
#include "tutti/systems/models/model_source.h"
#include "tutti/systems/recognizer.h"
#include "tutti/systems/stages.h"

namespace tutti::systems {
namespace {

Json recognise(Recognizer& recognizer, const std::string& path) {
  data::Audio audio = data::read_audio(path, {.sample_rate = recognizer.sample_rate});
  const double seconds = static_cast<double>(audio.samples.size()) / recognizer.sample_rate;
  if (seconds < 0.1)
    throw DataError(fmt::format("the recording has {:.2f} s, expected at least 0.1 s", seconds));
  const double begin = Clock::system().unix_seconds();
  data::Sample sample{.uid = "the recording",
                      .speech = std::move(audio.samples),
                      .sample_rate = recognizer.sample_rate};
  recognizer.prepare(sample);
  const auto recognised = recognizer.speech2text->decode_waveforms({sample.speech})[0];
  if (!recognised.problem.empty()) throw DataError("the recording " + recognised.problem);
  const double took = Clock::system().unix_seconds() - begin;
  const auto& best = recognised.nbest.at(0);
  Json tokens = Json::array();
  for (std::size_t i = 0; i < best.times.size(); ++i)
    tokens.push_back({{"token", best.tokens[i]},
                      {"begin", round_time(best.times[i].begin)},
                      {"end", round_time(best.times[i].end)}});
  Json nbest = Json::array();
  for (const auto& other : recognised.nbest)
    nbest.push_back(
        {{"text", other.text}, {"score", other.score ? Json(round_score(*other.score)) : Json()}});
  return {{"text", best.text},
          {"tokens", tokens},
          {"nbest", nbest},
          {"seconds", seconds},
          {"rtf", took / seconds}};
}

DemoOptions read_options(const config::Node& demo) {
  const config::Node ui = demo["ui"];
  const config::Node server = demo["server"];
  DemoOptions options;
  options.title = ui["title"].value_or(options.title);
  options.description = ui["description"].value_or(options.description);
  for (const auto& entry : ui["examples"].elements()) {
    const std::filesystem::path file = entry.as<std::string>();
    if (std::filesystem::exists(file))
      options.examples.push_back(file);
    else
      log::warning("ui.examples: {}: no such file; the page goes without it", file.string());
  }
  options.host = server["host"].value_or(options.host);
  options.port = server["port"].value_or(options.port);
  options.max_requests_per_minute =
      server["max_requests"].value_or(options.max_requests_per_minute);
  options.max_upload_bytes =
      server["max_upload"].value_or(config::Bytes{options.max_upload_bytes}).count;
  return options;
}

}  // namespace

void demo(const StageContext& context) {
  const config::Node model = context.demo["model"];
  Json search = config::to_json(model["call_args"]);
  if (!search.is_object()) search = Json::object();
  search["token_times"] = true;
  search.emplace("nbest", 5);  // what else it may have been
  refuse_missing_model(model["dir_or_tag"].as<std::string>(), "model.dir_or_tag");
  Recognizer recognizer =
      load_packed_recognizer(model["dir_or_tag"].as<std::string>(), config::from_json(search), 1);
  // Signals are taken by a thread of their own, so that the server can be stopped from plain code.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM}) sigaddset(&signals, signal);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const DemoOptions options = read_options(context.demo);
  DemoServer server(options, [&](const std::string& path) { return recognise(recognizer, path); });
  fmt::print(
      "open http://{0}:{1}/ (Ctrl-C ends it)\n"
      "or:  curl --data-binary @FILE.wav http://{0}:{1}/api/recognize\n",
      options.host, server.port());
  std::fflush(stdout);
  std::thread waiter([&] {
    int signal = 0;
    sigwait(&signals, &signal);
    server.stop();
  });
  server.run();
  waiter.join();
}

}  // namespace tutti::systems
