#!/bin/bash
exec "$(dirname "$0")/../fake/down.sh"
