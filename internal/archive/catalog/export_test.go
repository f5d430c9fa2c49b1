package catalog

import "github.com/weir-social/weir/internal/archive"

// ParseFetched returns the identity of an archived fetched event, and its day.
func ParseFetched(record []byte) (id archive.ID, day int32, err error) {
	e, err := parseFetched(record)
	if err != nil {
		return id, 0, err
	}
	return e.id(nil), e.day(), nil
}
