// Package dictionary holds the zstd dictionary of Jetstream's servers. It is a file of
// github.com/bluesky-social/jetstream (pkg/models/zstd_dictionary), whose licence is beside it.
package dictionary

import _ "embed" // for V1

// V1 is the dictionary with which servers compress the frames of /subscribe.
//
//go:embed v1.zdict
var V1 []byte
