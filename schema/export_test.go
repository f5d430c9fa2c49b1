package schema

import "github.com/weir-social/weir/archive"

// RequireExtension is requireExtension.
var RequireExtension = requireExtension

// ParseFetched returns what identifies an archived event that was fetched, and its day.
func ParseFetched(record []byte) (id archive.ID, day int32, err error) {
	e, err := parseFetched(record)
	if err != nil {
		return id, 0, err
	}
	return e.id(nil), e.day(), nil
}

// EventsBetweenSQL is what EventsBetween asks.
const EventsBetweenSQL = eventsBetween
