#include <gtest/gtest.h>
TEST(Room, Builds) {}
