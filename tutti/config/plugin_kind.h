// What a plugin may add (plugin.h): specialised beside each registry, with the group of the catalogue.
//
//   template <>
//   struct PluginKind<trainer::Optimizer> {
//     using Registry = trainer::OptimizerRegistry;
//     static constexpr const char* kGroup = "optimizer";
//   };
//
// What has a name of its own and no settings says instead how it is added:
//
//   template <>
//   struct PluginKind<systems::Stage> {
//     using Registry = systems::StageRegistry;
//     static void add(Registry& stages, systems::Stage stage);
//   };
#pragma once

namespace tutti::config {

template <class Product>
struct PluginKind;

}  // namespace tutti::config
