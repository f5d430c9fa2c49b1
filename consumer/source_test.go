package consumer

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema"
)

// rewinding is a source whose servers send events late.
type rewinding struct {
	Source
	by time.Duration
}

func (s rewinding) Capabilities() Capabilities { return Capabilities{Rewind: s.by} }

// TestASourceSaysHowFarAResumeRewinds shows that the source decides how far a
// resume rewinds, unless the configuration does.
func TestASourceSaysHowFarAResumeRewinds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ source, config, want time.Duration }{
		{0, 0, 5 * time.Minute}, {time.Hour, 0, time.Hour}, {time.Hour, time.Minute, time.Minute},
	} {
		made, err := New(Config{
			Storage: Storage{
				Pool: &pgxpool.Pool{}, Wanted: func(string) bool { return true }, Logger: slog.New(slog.DiscardHandler),
				Enqueue: func(context.Context, pgx.Tx, []schema.Stored, time.Time) error { return nil },
			},
			Stream: "s", Leasing: Leasing{Owner: "o"}, Source: rewinding{by: c.source}, Resuming: Resuming{Rewind: c.config},
		})
		require.NoError(t, err)
		require.Equal(t, c.want, made.cfg.Rewind)
	}
}
