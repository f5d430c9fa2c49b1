package schema_test

import "github.com/weir-social/weir/schema"

// linksProjection is a projection with a table of the schema.
func linksProjection() schema.Projections {
	return schema.Projections{{Name: "links", Collections: []string{schema.PostCollection}, Kind: "process_posts", Queue: "process", Tables: []string{"shares"}}}
}
