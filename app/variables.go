package app

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"

	protocol "github.com/weir-social/weir/internal/nostr"
)

// Variables returns the names of the environment variables of Weir.
func Variables() []string {
	var all []string
	for _, of := range (Config{features: Features()}).variables() {
		for i := range of.NumField() {
			if name := of.Type().Field(i).Tag.Get("env"); name != "" {
				all = append(all, name)
			}
		}
	}
	return all
}

// variables returns the structs whose fields are variables: the core's and those of the features.
func (c Config) variables() []reflect.Value {
	all := []reflect.Value{reflect.ValueOf(c)}
	for _, f := range c.features {
		if f.Config != nil {
			all = append(all, reflect.ValueOf(f.Config).Elem())
		}
	}
	return all
}

// CheckArguments returns an error if an argument contains a Nostr secret key. Call it before
// anything else reads the arguments, because errors quote them.
func CheckArguments(arguments []string) error {
	if slices.ContainsFunc(arguments, protocol.ContainsSecret) {
		return protocol.ErrSecret
	}
	return nil
}

// CheckVariables returns an error for an unknown variable with Weir's prefix: otherwise a
// misspelt setting would silently keep its default.
//
// It also returns an error if a variable contains a secret key in Nostr's notation, because
// `weir config` would print it. The error does not quote the key.
func CheckVariables(environ []string) error {
	names := append(Variables(), "WEIR_TEST_DATABASE_URL", "WEIR_TESTDATA", "WEIR_PG_BINARIES_URL") // of tests and tools
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		if strings.HasPrefix(name, "WEIR_") && protocol.ContainsSecret(value) {
			return fmt.Errorf("%s: %w", name, protocol.ErrSecret)
		}
		if !strings.HasPrefix(name, "WEIR_") || slices.Contains(names, name) {
			continue
		}
		nearest := slices.MinFunc(names, func(a, b string) int {
			return levenshtein.ComputeDistance(name, a) - levenshtein.ComputeDistance(name, b)
		})
		return fmt.Errorf("%s is not a variable of weir: did you mean %s? (docs/configuration.md lists them all)", name, nearest)
	}
	return nil
}
