// The samplers that live in files of their own; called by make_batches only.
#pragma once

#include "tutti/data/batching/sampler.h"

namespace tutti::data {

// Rows in ascending order of the first column, equal lengths in file order. REQUIRES: a column.
std::vector<std::uint32_t> rows_by_length(const LengthTable& table);
// File order, each batch as long as the budget allows: `unsorted` with batch_bins and no
// batch_size.
BatchList in_order_by_bins(const BatchSettings& settings, const LengthTable& table);
// Blocks of batch_size in file order, the last one smaller: the plain DataLoader.
BatchList sequential(const BatchSettings& settings, const LengthTable& table);
BatchList bucketed(const BatchSettings& settings, const LengthTable& table, const DrawKey& key);
BatchList category_balanced(const BatchSettings& settings, const Categories& categories,
                            const DrawKey& key);
BatchList category_power(const BatchSettings& settings, const LengthTable& table,
                         const Categories& categories, const DrawKey& key);

}  // namespace tutti::data
