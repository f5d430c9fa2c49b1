package records

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/weir-social/weir/internal/atproto/syntax"
	"github.com/weir-social/weir/internal/lexicon/records"
	"github.com/weir-social/weir/internal/web"
	"github.com/weir-social/weir/schema"
)

// The two methods of the protocol that read records, over the stored records. The names
// of errors and the shapes are the protocol's, and unknown parameters are ignored.

const (
	defaultXRPC = 50
	maxXRPC     = 100
)

// xrpcRecord is a record in the protocol's form.
type xrpcRecord struct {
	URI   string          `json:"uri"`
	CID   string          `json:"cid"`
	Value json.RawMessage `json:"value"`
}

type xrpcRecords struct {
	Cursor  string       `json:"cursor,omitempty"`
	Records []xrpcRecord `json:"records"`
}

// xrpcError is an error of the protocol.
type xrpcError struct {
	code    int
	Name    string `json:"error"`
	Message string `json:"message"`
}

func (e *xrpcError) Error() string { return e.Name + ": " + e.Message }

func invalid(format string, values ...any) error {
	return &xrpcError{http.StatusBadRequest, "InvalidRequest", fmt.Sprintf(format, values...)}
}

func (s *server) serveGetRecord(w http.ResponseWriter, r *http.Request) {
	s.xrpc(w, r, func(ctx context.Context, params url.Values) (any, error) {
		repo, collection, err := repoOf(params)
		if err != nil {
			return nil, err
		}
		rkey := params.Get("rkey")
		if !syntax.IsRecordKey(rkey) {
			return nil, invalid("Error: rkey must be a valid Record Key")
		}
		cid := params.Get("cid")
		if cid != "" && !syntax.IsCID(cid) {
			return nil, invalid("Error: cid must be a cid string")
		}
		k := schema.Key{Collection: collection, DID: repo, Rkey: rkey}
		missing := &xrpcError{http.StatusBadRequest, "RecordNotFound", "Could not locate record: " + k.URI()}
		k.DID, err = s.account(ctx, repo)
		if err != nil {
			return nil, err
		}
		found, err := records.Find(ctx, s.DB, k)
		if errors.Is(err, schema.ErrNoRows) || err == nil && cid != "" && cid != found.CID {
			return nil, missing
		}
		return xrpcRecord{found.URI, found.CID, found.Value}, err
	})
}

func (s *server) serveListRecords(w http.ResponseWriter, r *http.Request) {
	s.xrpc(w, r, func(ctx context.Context, params url.Values) (any, error) {
		repo, collection, err := repoOf(params)
		if err != nil {
			return nil, err
		}
		limit := defaultXRPC
		if text := params.Get("limit"); text != "" {
			if limit, err = strconv.Atoi(text); err != nil {
				return nil, invalid("Error: limit must be an integer")
			}
		}
		if limit < 1 || limit > maxXRPC {
			return nil, invalid("Error: limit must be from 1 to %d", maxXRPC)
		}
		reverse := params.Get("reverse")
		if reverse != "" && reverse != "true" && reverse != "false" {
			return nil, invalid("Error: reverse must be a boolean")
		}
		cursor := params.Get("cursor")
		if cursor != "" && !syntax.IsRecordKey(cursor) {
			return nil, invalid("Error: cursor is not one of this list")
		}
		did, err := s.account(ctx, repo)
		if err != nil {
			return nil, err
		}
		found, next, err := records.ListOf(ctx, s.DB, did, collection, limit, cursor, reverse == "true")
		response := xrpcRecords{Cursor: next, Records: make([]xrpcRecord, 0, len(found))}
		for i := range found {
			response.Records = append(response.Records, xrpcRecord{found[i].URI, found[i].CID, found[i].Value})
		}
		return response, err
	})
}

// repoOf reads the two parameters that both methods require.
func repoOf(params url.Values) (repo, collection string, err error) {
	repo, collection = params.Get("repo"), params.Get("collection")
	switch {
	case !params.Has("repo"):
		return "", "", invalid(`Error: Params must have the property "repo"`)
	case !params.Has("collection"):
		return "", "", invalid(`Error: Params must have the property "collection"`)
	case !syntax.IsAtIdentifier(repo):
		return "", "", invalid("Error: repo must be a valid did or a handle")
	case !syntax.IsNSID(collection):
		return "", "", invalid("Error: collection must be a valid nsid")
	}
	return repo, collection, nil
}

// account returns the DID of an account whose records may be shown.
func (s *server) account(ctx context.Context, repo string) (did string, err error) {
	account, err := records.FindAccount(ctx, s.DB, repo)
	switch {
	case errors.Is(err, schema.ErrNoRows):
		return "", invalid("Could not find repo: %s", repo)
	case err != nil:
		return "", err
	}
	hidden := map[string]string{
		"takendown": "RepoTakendown", "suspended": "RepoSuspended", "deactivated": "RepoDeactivated", "deleted": "RepoNotFound",
	}
	switch name, ok := hidden[account.Status]; {
	case ok:
		return "", &xrpcError{http.StatusBadRequest, name, "Repo is " + account.Status + ": " + account.DID}
	case account.Status != "active":
		return "", &xrpcError{http.StatusBadRequest, "RepoNotFound", "Could not find repo: " + repo}
	}
	return account.DID, nil
}

// xrpc writes the response of a method.
func (s *server) xrpc(w http.ResponseWriter, r *http.Request, read func(context.Context, url.Values) (any, error)) {
	ctx, cancel := context.WithTimeout(r.Context(), web.QueryTimeout)
	defer cancel()
	params, err := url.ParseQuery(r.URL.RawQuery)
	var found any
	if err != nil {
		err = invalid("Error: the query is malformed")
	} else {
		found, err = read(ctx, params)
	}
	refused, isRefused := errors.AsType[*xrpcError](err)
	switch {
	case isRefused:
		w.Header().Set("Cache-Control", "no-store")
		web.WriteJSON(w, refused.code, refused)
	case err != nil:
		s.Log.Error("records_read_failed", "path", web.PlainLine(r.URL.Path, web.MaxDetail), "error", err)
		s.WriteUnavailable(w, r)
	default:
		w.Header().Set("Cache-Control", "no-cache")
		web.WriteJSON(w, http.StatusOK, found)
	}
}

func (s *server) serveNoMethod(w http.ResponseWriter, r *http.Request) {
	s.WriteError(w, r, http.StatusNotImplemented, say("error_xrpc", web.PlainLine(strings.TrimPrefix(r.URL.Path, "/xrpc/"), web.MaxName)))
}

// protocolError returns an error that the server returns for any request.
func protocolError(code int, message string) any {
	return &xrpcError{Name: xrpcName(code), Message: message}
}

// xrpcName returns the protocol's name for an error that the server returns for any
// request.
func xrpcName(code int) string {
	switch code {
	case http.StatusTooManyRequests:
		return "RateLimitExceeded"
	case http.StatusServiceUnavailable:
		return "NotEnoughResources"
	case http.StatusNotImplemented:
		return "MethodNotImplemented"
	}
	return "InvalidRequest"
}
