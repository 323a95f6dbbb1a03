// The data room's plan and loader as the trainer's DataSource.
#pragma once

#include <memory>

#include "tutti/data/batching/plan.h"
#include "tutti/data/loader.h"
#include "tutti/trainer/batch.h"

namespace tutti::systems {

struct PlannedSourceInputs {
  std::shared_ptr<const data::Dataset> dataset;
  std::shared_ptr<const data::BatchPlan> plan;
  data::Prepare prepare;
  data::LoaderSettings loader;
  int rank = 0;
  int sample_rate = 0;  // Hz, to count audio seconds
};

// Resuming at the world size of the checkpoint continues the same plan at the same group. At
// another world size (once or several times within an epoch) the batches that are left of that
// epoch are dealt out again, whole and in order, so that no utterance of the epoch is seen twice or
// lost; later epochs follow the plan for today's ranks.
std::unique_ptr<trainer::DataSource> make_planned_source(PlannedSourceInputs inputs);

// Wraps arrays without copying them.
trainer::Batch to_trainer_batch(data::Batch batch, int sample_rate);

}  // namespace tutti::systems
