package feeds

import (
	"github.com/weir-social/weir/feature"
	"github.com/weir-social/weir/internal/ranking/feeds"
)

// Feature publishes the views of the ranking as feeds.
func Feature() feature.Feature {
	return feature.Feature{Name: "feeds", Tables: feeds.Tables, Open: func(feature.Core) (feature.Parts, error) {
		return feature.Parts{Pages: []feature.Page{Part()}}, nil
	}}
}
