package e2e

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/simnet"
)

func TestWatcherKnowsWhoMayCount(t *testing.T) {
	t.Parallel()
	const page, repost = "https://a.example", "app.bsky.feed.repost"
	edit := wrote("f", "1", "r2", time.Minute)
	edit.Operation = "update"
	log := []*simnet.Entry{
		wrote("a", "1", "r1", time.Minute, page),                               // 1
		refers(wrote("b", "1", "r1", time.Minute), repost, "a", "1"),           // 2
		refers(wrote("c", "1", "r1", time.Minute, page), oraclePost, "a", "1"), // 3: also shares it by itself
		refers(wrote("e", "1", "r1", time.Minute), oraclePost, "c", "1"),       // 4
		wrote("d", "1", "r1", time.Minute, page),                               // 5
		removed("a", "1", "r2"),                                                // 6
		{Kind: "account", DID: "d", Status: "deactivated"},                     // 7
		{Kind: "account", DID: "d", Active: true},                              // 8
		{Kind: "account", DID: "c", Status: "deleted"},                         // 9
		wrote("f", "1", "r1", time.Minute, page),                               // 10
		edit,                                                                   // 11: without the link
		removed("f", "1", "r3"),                                                // 12
		wrote("a", "1", "r4", time.Minute, page),                               // 13: again
	}
	for i, e := range log {
		e.Seq, e.RelaySeq = int64(i+1), int64(i+1)
	}
	sharers := func(h *history, of committed) string {
		return strings.Join(slices.Sorted(maps.Keys(h.sharers([]string{"https://b.example", page}, of))), "")
	}
	for _, of := range []struct {
		before, after int // the last event committed before the request, and the last one of the log after it
		want          string
	}{
		{0, 5, "abcde"}, {5, 5, "abcde"},
		{5, 6, "abcde"}, {6, 6, "cde"}, // the deletion removes its reposts too
		{6, 7, "cde"}, {7, 7, "ce"}, {7, 8, "cde"}, {8, 8, "cde"}, {6, 8, "cde"},
		{8, 9, "cde"}, {9, 9, "d"}, // the deleted account and the quote of its post
		{10, 10, "df"}, {11, 11, "df"}, {11, 12, "df"}, {12, 12, "d"}, // an edit takes effect later
		{12, 13, "abd"}, {13, 13, "abd"},
		{0, 13, "abcdef"},
	} {
		h := newHistory()
		for after := range of.after + 1 { // the log grows
			h.learn(log[:after])
		}
		require.Equal(t, of.want, sharers(h, committed{until: int64(of.before)}), "%+v", of)
	}
	lost := func(seq int) map[*simnet.Entry]bool { return map[*simnet.Entry]bool{log[seq-1]: true} }
	for _, of := range []struct {
		m    committed
		want string
	}{
		{committed{until: 9, lost: lost(6)}, "abd"}, // the deletion of the post was not read
		{committed{until: 9, lost: lost(6), round: round{relay: true}}, "abd"},
		{committed{until: 9, lost: lost(8)}, ""},                                     // the account's return was not read
		{committed{until: 4, lost: lost(1)}, "cde"},                                  // the post was not read
		{committed{until: 4, lost: lost(1), round: round{relay: true}}, "abcde"},     // the post may be found in the repository
		{committed{members: map[string]bool{"b": true, "e": true, "x": true}}, "be"}, // strangers do not count
		{committed{members: map[string]bool{}}, ""},
		{committed{members: map[string]bool{"b": true}}.joined(map[string]bool{"d": true}), "bd"}, // d was followed meanwhile
		{committed{members: map[string]bool{"b": true}}.joined(nil), "abcde"},                     // Postgres was down
		{committed{}.joined(map[string]bool{"b": true}), "abcde"},
		// the deletion may wait for a key
		{committed{until: 9, doubted: []string{"c"}}, "cde"},
		// hidden accounts may count until the next listing
		{committed{until: 9, round: round{follows: true}, steady: map[string]bool{"a": true, "c": true}}, "cde"},
		{committed{until: 9, round: round{follows: true}, steady: map[string]bool{"a": true}, since: 6}, "abcde"},
		{committed{until: 9, round: round{follows: true}, steady: map[string]bool{"b": true}}, "abcde"}, // a stranger's deletions are not read
	} {
		h := newHistory()
		h.learn(log[:9])
		require.Equal(t, of.want, sharers(h, of.m), "%+v", of)
	}
}
