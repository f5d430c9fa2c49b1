package links

import (
	"cmp"
	"fmt"
	"time"

	"github.com/weir-social/weir/feature"
	"github.com/weir-social/weir/internal/links/commands"
	"github.com/weir-social/weir/internal/links/redirect"
	"github.com/weir-social/weir/internal/ops/health"
	"github.com/weir-social/weir/internal/ranking"
	page "github.com/weir-social/weir/internal/web/links"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// Variables configure the feature.
type Variables struct {
	// How long shares are kept: who shared which link when. At least 24h. Longer windows of
	// the ranking are incomplete. Deletions and closed gaps are kept a day longer.
	ShareRetention time.Duration `env:"WEIR_SHARE_RETENTION" envDefault:"168h"`
	// How long a link that five or more accounts share is kept after shares of it expire. 0:
	// for ever. Other links are deleted a day after their last share.
	LinkRetention time.Duration `env:"WEIR_LINK_RETENTION" envDefault:"2160h"`
	// Whether shorteners such as bit.ly are asked where their links lead, so that a short link
	// counts as the article. Only shorteners are contacted.
	ResolveLinks bool `env:"WEIR_RESOLVE_LINKS" envDefault:"true"`
	// Where the pictures of cards come from. Empty: no pictures.
	ImageBase string `env:"WEIR_IMAGE_BASE" envDefault:"https://cdn.bsky.app/img/feed_thumbnail/plain/{did}/{cid}@jpeg" empty:"true"`
}

// Feature ranks the links that accounts share.
func Feature() feature.Feature {
	v := &Variables{}
	return feature.Feature{Name: "links", Tables: ranking.Tables, Config: v, Open: v.open, Commands: commands.All, Trace: commands.Trace()}
}

func (v *Variables) open(core feature.Core) (parts feature.Parts, err error) {
	switch {
	case v.ShareRetention < workers.MinRetention:
		return parts, fmt.Errorf("WEIR_SHARE_RETENTION is %s: expected at least %s", v.ShareRetention, workers.MinRetention)
	case v.LinkRetention < 0:
		return parts, fmt.Errorf("WEIR_LINK_RETENTION is %s: expected a time such as 2160h, or 0 to keep such links for ever", v.LinkRetention)
	}
	return feature.Parts{Projections: []schema.Projection{Projection()},
		Pages: []feature.Page{page.Part(cmp.Or(core.Pictures, v.ImageBase))}, Keeps: v.ShareRetention,
		Relations:  ranking.ShareRelations(v.ShareRetention),
		Operations: feature.Operations{Compared: ranking.Compared(), Health: []health.Feature{ranking.Health()}}, Rebuilt: projectChanged,
		Snapshots: []schema.SnapshotTable{ranking.MergesSnapshot(), ranking.BlocksSnapshot()}, Workers: func(b workers.Bundle) error {
			cfg := Config{
				Keep:      Retention{Shares: v.ShareRetention, Links: v.LinkRetention, LinksForever: v.LinkRetention == 0},
				announced: announceInterval,
			}
			if v.ResolveLinks {
				cfg.Redirects = redirect.New(redirect.Config{Limit: core.Limit, UserAgent: core.UserAgent})
			}
			Add(b, cfg)
			return nil
		}}, nil
}
