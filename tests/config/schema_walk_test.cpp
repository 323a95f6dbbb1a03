// Every key that a schema accepts has a reader, and every schema stands in the reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <set>

#include "tests/places.h"
#include "tutti/config/reference.h"
#include "tutti/config/schemas/data.h"
#include "tutti/config/schemas/files.h"
#include "tutti/core/file.h"
#include "tutti/systems/standard_checker.h"

namespace tutti::config {
namespace {

namespace fs = std::filesystem;

// The sources of the rooms that do the work; what only checks is left out.
std::string working_sources() {
  std::string text;
  for (const char* root : {"tutti", "apps"})
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(in_source()) / root)) {
      const std::string path = entry.path().string();
      const std::string extension = entry.path().extension().string();
      if (extension != ".cpp" && extension != ".h") continue;
      if (path.find("tutti/config/") != std::string::npos) continue;
      text += read_file(entry.path());
    }
  return text;
}

TEST(Schemas, EveryKeyOfAFileIsReadSomewhere) {
  const std::string sources = working_sources();
  // Numbers for ${...} in other keys.
  const std::set<std::string> variables = {"num_device"};
  for (const SchemaInfo& info :
       {training_schema().info(), inference_schema().info(), metrics_schema().info(),
        demo_schema().info(), tokenizer_schema().info(), dataset_schema().info(),
        dataset_entry_schema().info(), named_optimizer_schema().info(),
        named_scheduler_schema().info()})
    for (const FieldInfo& field : info.fields) {
      const std::string key = field.key.substr(field.key.rfind('.') + 1);
      if (variables.count(key) > 0) continue;
      // By its name, or as a member of the struct that the schema fills.
      EXPECT_TRUE(sources.find('"' + key + '"') != std::string::npos ||
                  std::regex_search(sources, std::regex("\\." + key + "\\b")))
          << info.name << ": " << field.key << " is accepted and nothing reads it";
    }
}

TEST(Schemas, EveryTableIsInTheReference) {
  const FileChecker checker = systems::standard_checker();
  const std::string reference = read_file(fs::path(in_source("docs/config-reference.md")));
  for (const SchemaInfo& info : systems::reference_tables()) {
    EXPECT_NE(reference.find("## " + info.name + "\n"), std::string::npos) << info.name;
    for (const FieldInfo& field : info.fields) {
      EXPECT_NE(reference.find("| `" + field.key + "` |"), std::string::npos)
          << info.name << "." << field.key;
      EXPECT_FALSE(field.doc.empty()) << info.name << "." << field.key;
    }
  }
  for (const char* heading :
       {"## parallel\n", "## parallel.options of env: slurm\n",
        "## parallel.options of env: kube\n", "## parallel.options of env: local_gpu\n",
        "## trainer\n", "## optimizers.<name>\n", "## model\n", "## model.frontend_conf\n",
        "## model.encoder_conf of e_branchformer\n", "## model.decoder_conf of transducer\n",
        "## model.model_conf\n"})
    EXPECT_NE(reference.find(heading), std::string::npos) << heading;
  for (const std::string& group : checker.catalogue().groups())
    for (const Component* component : checker.catalogue().components(group))
      EXPECT_NE(reference.find("### " + group + ": " + component->name + "\n"), std::string::npos)
          << group << ": " << component->name;
}

}  // namespace
}  // namespace tutti::config
