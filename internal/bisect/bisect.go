// Package bisect isolates the bad one of a batch.
package bisect

// Each calls try with all items. If try fails because of one of them, as ofOne tells from its error, the items
// are halved until the one at fault is alone, and alone is called with it and its error. Any other error, and
// one of alone, ends Each. Without items nothing is called.
func Each[T any](all []T, try func([]T) error, ofOne func(error) bool, alone func(T, error) error) error {
	if len(all) == 0 {
		return nil
	}
	err := try(all)
	switch {
	case err == nil || !ofOne(err):
		return err
	case len(all) == 1:
		return alone(all[0], err)
	}
	half := len(all) / 2
	if err := Each(all[:half], try, ofOne, alone); err != nil {
		return err
	}
	return Each(all[half:], try, ofOne, alone)
}
