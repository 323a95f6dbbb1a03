#include "tutti/core/tiles.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace tutti {
namespace {

TEST(Tiles, AFaultIsNamedOnlyWhereAUnitIsShown) {
  EXPECT_EQ(tile_fault({}), "");
  EXPECT_EQ(tile_fault({.shown = true, .described = true, .permitted = true, .runs = true}), "");
  EXPECT_EQ(tile_fault({.shown = true}), "its CPUID leaf 0x1D is hidden");
  EXPECT_EQ(tile_fault({.shown = true, .described = true}), "the kernel permits no tiles");
  EXPECT_EQ(tile_fault({.shown = true, .described = true, .permitted = true}),
            "its instructions do not run");
}

TEST(Tiles, ALookLeavesNoChildAndAgreesWithItself) {
  const TileFacts facts = look_at_tiles();
  EXPECT_EQ(tile_fault(facts), tile_fault(look_at_tiles()));
  EXPECT_TRUE(facts.shown || !facts.runs);
}

TEST(Tiles, ALimitOfTheUsersStands) {
  for (const char* name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}) {
    ::unsetenv("ONEDNN_MAX_CPU_ISA");
    ::unsetenv("DNNL_MAX_CPU_ISA");
    ::setenv(name, "AVX2", 1);
    keep_off_broken_tiles();
    EXPECT_EQ(onednn_limit(), std::string(name) + "=AVX2");
    ::unsetenv(name);
  }
  keep_off_broken_tiles();
  EXPECT_EQ(onednn_limit().empty(), tile_fault(look_at_tiles()).empty());
}

}  // namespace
}  // namespace tutti
