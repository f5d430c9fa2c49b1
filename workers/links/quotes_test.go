package links

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/riverqueue/river"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/weir-social/weir/internal/crashpoint"
	"github.com/weir-social/weir/schema"
)

// conversation is the content of a town's posts: their own links, and the posts that they quote or
// repost.
type conversation map[string]said

type said struct {
	subject string // empty if there is none
	urls    []string
}

// sharing returns what the records share, like town.sharing.
func (c conversation) sharing() []string {
	all := []string{}
	for name, one := range c {
		for _, url := range one.urls {
			all = append(all, name+" post "+url)
		}
		how := "quote"
		if strings.Contains(name, "/r") {
			how = "repost"
		}
		if one.subject == name {
			continue
		}
		for _, url := range c[one.subject].urls {
			if !slices.Contains(one.urls, url) {
				all = append(all, name+" "+how+" "+url)
			}
		}
	}
	slices.Sort(all)
	return all
}

// killed runs a job whose process dies after some of its transactions, again and again until the
// job ends.
func killed(ctx context.Context, w *ProcessPosts, job *river.Job[ProcessPostsArgs], random *rand.Rand) error {
	for try := 1; ; try++ {
		life, die := context.WithCancel(ctx)
		job.Attempt = try
		err := w.Work(crashpoint.With(life, func(context.Context, string) {
			if random.IntN(4) == 0 {
				die()
			}
		}), job)
		die()
		if err == nil || try == 100 {
			return err
		}
	}
}

// TestAnyOrderOfQuotesEndsTheSame writes, edits and deletes posts that contain some of the same few
// links and quote each other. Four workers process them, die, and begin again. Another worker
// checks the subjects that change.
func TestAnyOrderOfQuotesEndsTheSame(t *testing.T) {
	t.Parallel()
	rounds := 10
	if testing.Short() {
		rounds = 2
	}
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			c := newTown(t)
			random, stored := rand.New(rand.NewPCG(seed, 9)), conversation{}
			for range rounds {
				c.busy(random, func(todo chan<- *river.Job[ProcessPostsArgs]) { c.converse(random, stored, 25, todo) })
				c.check(c.checks())
				require.Equal(t, stored.sharing(), c.sharing())
			}
		})
	}
}

// busy runs workers while jobs are enqueued, until all of them are done.
func (c *town) busy(random *rand.Rand, enqueue func(todo chan<- *river.Job[ProcessPostsArgs])) {
	c.t.Helper()
	todo := make(chan *river.Job[ProcessPostsArgs])
	working := c.working(c.t.Context())
	var workers, checker errgroup.Group
	for range 4 {
		w, own := worker(c.pool), rand.New(rand.NewPCG(random.Uint64(), 0))
		workers.Go(func() error {
			for job := range todo {
				if err := killed(working, w, job, own); err != nil {
					return err
				}
			}
			return nil
		})
	}
	over := make(chan struct{})
	checker.Go(func() error {
		for checks := c.checks(); ; {
			err := checks.Work(c.t.Context(), &river.Job[CheckSubjectsArgs]{JobRow: c.job().JobRow})
			select {
			case <-over:
				return nil
			default:
			}
			if err != nil && !errors.Is(err, errSubjectsChanging) && schema.Classify(err) != schema.Transient {
				return err
			}
		}
	})
	enqueue(todo)
	close(todo)
	require.NoError(c.t, workers.Wait())
	close(over)
	require.NoError(c.t, checker.Wait())
	c.enqueued()
}

// converse writes and deletes records, enqueues their jobs, and keeps track of what is stored.
func (c *town) converse(random *rand.Rand, stored conversation, steps int, todo chan<- *river.Job[ProcessPostsArgs]) {
	c.t.Helper()
	names := []string{"a/1", "a/2", "a/3", "b/1", "b/2", "b/3", "b/r1", "c/1", "c/2", "c/r1"}
	posts := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return strings.Contains(name, "/r") })
	var batch []string
	fresh := true
	for range steps {
		name := names[random.IntN(len(names))]
		_, there := stored[name]
		if there && random.IntN(5) == 0 {
			c.deletes(name)
			delete(stored, name)
			continue // a deletion enqueues nothing
		}
		one := said{subject: posts[random.IntN(len(posts))]}
		if strings.Contains(name, "/r") {
			c.reposts(name, one.subject)
		} else {
			for i := range 3 {
				if random.IntN(3) == 0 {
					one.urls = append(one.urls, fmt.Sprintf("https://x.example/%d", i))
				}
			}
			if random.IntN(2) == 0 {
				one.subject = ""
			}
			c.posts(name, one.subject, one.urls...)
		}
		stored[name] = one
		fresh = fresh && !there
		if batch = append(batch, name); random.IntN(2) == 0 {
			job := c.job(batch...)
			job.Args.Fresh = fresh
			todo <- job
			batch, fresh = nil, true
		}
	}
	if len(batch) > 0 {
		todo <- c.job(batch...)
	}
}
